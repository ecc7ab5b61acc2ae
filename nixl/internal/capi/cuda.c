// NIXL's UCX backend wants a CUDA context current on the thread that registers
// or posts GPU memory. Goroutines have no thread of their own, so each such
// call brings the primary context of its device along when the thread has none,
// and takes it away again: a thread is left as it was found.
#include "inner.h"

#include <string.h>

void nx_cuda_set(struct nx *l, void *get_current, void *device_get, void *primary_retain, void *push, void *pop)
{
	memcpy(&l->cuda.get_current, &get_current, sizeof get_current);
	memcpy(&l->cuda.device_get, &device_get, sizeof device_get);
	memcpy(&l->cuda.primary_retain, &primary_retain, sizeof primary_retain);
	memcpy(&l->cuda.push, &push, sizeof push);
	memcpy(&l->cuda.pop, &pop, sizeof pop);
}

int nx_cuda_retain(struct nx *l, int ordinal)
{
	void *context = NULL;
	int device = 0;
	if (l->cuda.get_current == NULL || ordinal < 0 || ordinal >= NX_CUDA_DEVICES)
		return -1;
	if (__atomic_load_n(&l->cuda.primary[ordinal], __ATOMIC_ACQUIRE) != NULL)
		return 0;
	int status = l->cuda.device_get(&device, ordinal);
	if (status == 0)
		status = l->cuda.primary_retain(&context, device);
	if (status == 0)
		__atomic_store_n(&l->cuda.primary[ordinal], context, __ATOMIC_RELEASE);
	return status;
}

int nx_cuda_push(const struct nx *l, int ordinal)
{
	void *context = NULL;
	if (ordinal >= NX_CUDA_DEVICES || l->cuda.get_current == NULL)
		return 0;
	if (l->cuda.get_current(&context) == 0 && context != NULL)
		return 0;
	context = __atomic_load_n(&l->cuda.primary[ordinal], __ATOMIC_ACQUIRE);
	return context != NULL && l->cuda.push(context) == 0;
}

void nx_cuda_pop(const struct nx *l)
{
	void *context = NULL;
	l->cuda.pop(&context);
}
