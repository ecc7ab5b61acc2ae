#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult fake_ModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, int *options, void **values)
{
	FAKE_ENTER("cuModuleLoadDataEx");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED(n == 0 && options == NULL && values == NULL && strstr(image, ".version") != NULL, 200);
	CUmodule m = calloc(1, sizeof *m);
	m->text = strdup(image);
	fake.live.modules++;
	*module = m;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_ModuleUnload(CUmodule m)
{
	FAKE_ENTER("cuModuleUnload");
	free(m->text);
	free(m);
	fake.live.modules--;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_ModuleGetFunction(CUfunction *function, CUmodule m, const char *name)
{
	char entry[128];

	FAKE_ENTER("cuModuleGetFunction");
	snprintf(entry, sizeof entry, ".entry %s(", name);
	FAKE_NEED(strlen(name) < 64 && strstr(m->text, entry) != NULL, LMC_CUDA_NOT_FOUND);
	CUfunction f = calloc(1, sizeof *f);
	strcpy(f->name, name);
	f->next = fake.functions;
	fake.functions = f;
	*function = f;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_LaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			   unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra)
{
	FAKE_ENTER("cuLaunchKernel");
	FAKE_NEED(gx > 0 && bx > 0 && bx <= 1024 && gy * gz * by * bz == 1 && shared <= 48 << 10 && params == NULL, LMC_CUDA_INVALID_VALUE);
	FAKE_NEED(extra[0] == (void *)1 && extra[2] == (void *)2 && extra[4] == NULL, LMC_CUDA_INVALID_VALUE);
	size_t n = *(size_t *)extra[3];
	op *o = calloc(1, sizeof *o);
	FAKE_NEED(n <= sizeof o->args, LMC_CUDA_INVALID_VALUE);
	o->kind = op_kernel;
	o->function = f;
	memcpy(o->args, extra[1], n);
	FAKE_LEAVE(fake_queue(stream, o));
}

// pull copies blocks: arrays of dst, src and bytes, and their number.
static void pull(const uint64_t *a)
{
	const uint64_t *dst = (const uint64_t *)(uintptr_t)a[0], *src = (const uint64_t *)(uintptr_t)a[1],
		       *bytes = (const uint64_t *)(uintptr_t)a[2];
	for (uint64_t i = 0; i < a[3]; i++)
		memcpy((void *)(uintptr_t)dst[i], (const void *)(uintptr_t)src[i], bytes[i]);
}

// transpose exchanges two axes inside blocks of [rows][columns] pieces.
static void transpose(const uint64_t *a)
{
	char *dst = (char *)(uintptr_t)a[0];
	const char *src = (const char *)(uintptr_t)a[1];
	uint64_t blocks = a[2], rows = a[3], columns = a[4], piece = a[5];
	for (uint64_t b = 0; b < blocks; b++)
		for (uint64_t r = 0; r < rows; r++)
			for (uint64_t c = 0; c < columns; c++)
				memcpy(dst + ((b * columns + c) * rows + r) * piece, src + ((b * rows + r) * columns + c) * piece, piece);
}

void fake_kernel(const op *o)
{
	uint64_t a[16];
	memcpy(a, o->args, sizeof a);
	if (strcmp(o->function->name, "lmc_pull") == 0)
		pull(a);
	else if (strcmp(o->function->name, "lmc_transpose") == 0)
		transpose(a);
}
