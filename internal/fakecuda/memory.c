#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static __thread CUcontext current;

// fake_current is this thread's context, if it lives. The lock is held.
CUcontext fake_current(void)
{
	// A thread may hold the address of a context of an earlier test.
	for (CUcontext c = fake.contexts; c != NULL; c = c->next)
		if (c == current)
			return c->alive ? c : NULL;
	return NULL;
}

// fake_find is the region that holds n bytes from p on. The lock is held.
region *fake_find(uint64_t p, size_t n)
{
	for (region *r = fake.regions; r != NULL; r = r->next)
		if (r->kind != region_reserved && p >= r->start && n <= r->bytes && p - r->start <= r->bytes - n &&
		    (r->ctx == NULL || r->ctx->alive))
			return r;
	return NULL;
}

static region *add(enum region_kind kind, uint64_t start, uint64_t bytes)
{
	region *r = calloc(1, sizeof *r);
	r->kind = kind;
	r->start = start;
	r->bytes = bytes;
	r->fd = -1;
	r->refs = 1;
	r->next = fake.regions;
	fake.regions = r;
	return r;
}

// drop takes a region out of the list and frees it.
static void drop(region *r)
{
	for (region **p = &fake.regions; *p != NULL; p = &(*p)->next) {
		if (*p == r) {
			*p = r->next;
			break;
		}
	}
	if (r->fd >= 0)
		close(r->fd);
	free(r);
}

static region *starting(enum region_kind kind, uint64_t start)
{
	for (region *r = fake.regions; r != NULL; r = r->next)
		if (r->kind == kind && r->start == start)
			return r;
	return NULL;
}

CUresult fake_Init(unsigned int flags)
{
	FAKE_ENTER("cuInit");
	FAKE_NEED(flags == 0, LMC_CUDA_INVALID_VALUE);
	FAKE_NEED(fake.devices > 0, 100);
	fake.initialized = 1;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DriverGetVersion(int *version)
{
	FAKE_ENTER("cuDriverGetVersion");
	*version = fake.version;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_GetErrorName(CUresult r, const char **text)
{
	FAKE_ENTER("cuGetErrorName");
	*text = "CUDA_ERROR_OF_THE_FAKE";
	FAKE_LEAVE(r == 0 ? LMC_CUDA_INVALID_VALUE : LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceGetCount(int *n)
{
	FAKE_ENTER("cuDeviceGetCount");
	*n = fake.devices;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceGet(CUdevice *dev, int ordinal)
{
	FAKE_ENTER("cuDeviceGet");
	FAKE_NEED(ordinal >= 0 && ordinal < fake.devices, LMC_CUDA_INVALID_DEVICE);
	*dev = ordinal;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceGetUUID(CUuuid *uuid, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetUuid_v2");
	memcpy(uuid->bytes, "\xfa\xce\0\0fake-cuda-\0", 16);
	uuid->bytes[15] = (char)dev;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceGetName(char *name, int len, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetName");
	snprintf(name, (size_t)len, "fake GPU %d", dev);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceTotalMem(size_t *bytes, CUdevice dev)
{
	FAKE_ENTER("cuDeviceTotalMem_v2");
	*bytes = dev < fake.devices ? fake.memory_bytes : 0;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceGetAttribute(int *value, int attribute, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetAttribute");
	FAKE_NEED(dev >= 0 && dev < fake.devices, LMC_CUDA_INVALID_DEVICE);
	switch (attribute) {
	case 11:
		*value = max_pitch;
		break;
	case 16:
		*value = 132;
		break;
	case 40:
		*value = 3;
		break;
	case 75:
		*value = 9;
		break;
	default:
		*value = 0;
	}
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceGetPCIBusID(char *id, int len, CUdevice dev)
{
	FAKE_ENTER("cuDeviceGetPCIBusId");
	snprintf(id, (size_t)len, "0000:%02X:00.0", 0x18 + dev);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	FAKE_ENTER("cuDeviceCanAccessPeer");
	*can = dev != peer;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_CtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	FAKE_ENTER("cuCtxEnablePeerAccess");
	FAKE_LEAVE(peer != NULL && flags == 0 ? LMC_CUDA_SUCCESS : LMC_CUDA_INVALID_VALUE);
}

CUresult fake_DevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	FAKE_ENTER("cuDevicePrimaryCtxSetFlags_v2");
	FAKE_LEAVE(dev < fake.devices && flags == 4 ? LMC_CUDA_SUCCESS : LMC_CUDA_INVALID_VALUE);
}

CUresult fake_DevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	FAKE_ENTER("cuDevicePrimaryCtxRetain");
	FAKE_NEED(dev >= 0 && dev < fake.devices, LMC_CUDA_INVALID_DEVICE);
	if (fake.retained[dev]++ == 0) {
		CUcontext c = calloc(1, sizeof *c);
		c->device = dev;
		c->alive = 1;
		c->next = fake.contexts;
		fake.contexts = fake.primary[dev] = c;
	}
	fake.live.contexts++;
	*ctx = fake.primary[dev];
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_DevicePrimaryCtxRelease(CUdevice dev)
{
	FAKE_ENTER("cuDevicePrimaryCtxRelease_v2");
	FAKE_NEED(dev >= 0 && dev < fake.devices && fake.retained[dev] > 0, LMC_CUDA_INVALID_CONTEXT);
	fake.live.contexts--;
	if (--fake.retained[dev] == 0)
		fake.primary[dev]->alive = 0;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_CtxSetCurrent(CUcontext ctx)
{
	FAKE_ENTER("cuCtxSetCurrent");
	current = ctx;
	FAKE_LEAVE(ctx == NULL || fake_current() != NULL ? LMC_CUDA_SUCCESS : LMC_CUDA_INVALID_CONTEXT);
}

CUresult fake_IpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	int64_t words[5];
	char path[64];

	FAKE_ENTER("cuIpcOpenMemHandle_v2");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED(flags == 1 && memcmp(handle.reserved + 56, "fakecuda", 8) == 0, LMC_CUDA_INVALID_VALUE);
	memcpy(words, handle.reserved, sizeof words);
	FAKE_NEED(words[1] != getpid(), LMC_CUDA_INVALID_CONTEXT);
	for (region *r = fake.regions; r != NULL; r = r->next) {
		if (r->kind == region_ipc && memcmp(r->key, handle.reserved, 64) == 0) {
			r->refs++;
			*p = r->start;
			FAKE_LEAVE(LMC_CUDA_SUCCESS);
		}
	}
	snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)words[3], (long long)words[4]);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	FAKE_NEED(fd >= 0, LMC_CUDA_INVALID_VALUE);
	void *m = mmap(NULL, (size_t)words[2], PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) {
		close(fd);
		FAKE_LEAVE(LMC_CUDA_MAP_FAILED);
	}
	region *r = add(region_ipc, (uint64_t)(uintptr_t)m, (uint64_t)words[2]);
	r->fd = fd;
	memcpy(r->key, handle.reserved, 64);
	fake.live.mappings++;
	*p = r->start;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_IpcCloseMemHandle(CUdeviceptr p)
{
	FAKE_ENTER("cuIpcCloseMemHandle");
	fake_settle();
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	region *r = starting(region_ipc, p);
	FAKE_NEED(r != NULL, LMC_CUDA_INVALID_VALUE);
	if (--r->refs == 0) {
		munmap((void *)(uintptr_t)r->start, r->bytes);
		drop(r);
		fake.live.mappings--;
	}
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemHostRegister(void *p, size_t bytes, unsigned int flags)
{
	FAKE_ENTER("cuMemHostRegister_v2");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED(p != NULL && bytes > 0 && flags == 3, LMC_CUDA_INVALID_VALUE);
	uint64_t start = (uint64_t)(uintptr_t)p;
	for (region *r = fake.regions; r != NULL; r = r->next)
		FAKE_NEED(r->kind != region_host || start + bytes <= r->start || r->start + r->bytes <= start,
			  LMC_CUDA_HOST_MEMORY_ALREADY_REGISTERED);
	add(region_host, start, bytes)->ctx = fake_current();
	fake.live.registrations++;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemHostUnregister(void *p)
{
	FAKE_ENTER("cuMemHostUnregister");
	fake_settle();
	region *r = starting(region_host, (uint64_t)(uintptr_t)p);
	FAKE_NEED(r != NULL && !r->owned, LMC_CUDA_HOST_MEMORY_NOT_REGISTERED);
	drop(r);
	fake.live.registrations--;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemHostGetDevicePointer(CUdeviceptr *dev, void *p, unsigned int flags)
{
	FAKE_ENTER("cuMemHostGetDevicePointer_v2");
	region *r = fake_find((uint64_t)(uintptr_t)p, 1);
	FAKE_NEED(r != NULL && r->kind == region_host && flags == 0, LMC_CUDA_INVALID_VALUE);
	*dev = (uint64_t)(uintptr_t)p;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
	FAKE_ENTER("cuMemHostAlloc");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED(bytes > 0 && flags == 3, LMC_CUDA_INVALID_VALUE);
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FAKE_NEED(m != MAP_FAILED, LMC_CUDA_OUT_OF_MEMORY);
	add(region_host, (uint64_t)(uintptr_t)m, bytes)->owned = 1;
	fake.live.host_allocations++;
	*p = m;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemFreeHost(void *p)
{
	FAKE_ENTER("cuMemFreeHost");
	fake_settle();
	region *r = starting(region_host, (uint64_t)(uintptr_t)p);
	FAKE_NEED(r != NULL && r->owned, LMC_CUDA_INVALID_VALUE);
	munmap(p, r->bytes);
	drop(r);
	fake.live.host_allocations--;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemAlloc(CUdeviceptr *p, size_t bytes)
{
	FAKE_ENTER("cuMemAlloc_v2");
	CUcontext c = fake_current();
	FAKE_NEED(c != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED(bytes > 0, LMC_CUDA_INVALID_VALUE);
	FAKE_NEED(fake.used_bytes + bytes <= fake.memory_bytes, LMC_CUDA_OUT_OF_MEMORY);
	int fd = memfd_create("fakecuda", MFD_CLOEXEC);
	FAKE_NEED(fd >= 0, LMC_CUDA_OUT_OF_MEMORY);
	void *m = ftruncate(fd, (off_t)bytes) != 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) {
		close(fd);
		FAKE_LEAVE(LMC_CUDA_OUT_OF_MEMORY);
	}
	region *r = add(region_device, (uint64_t)(uintptr_t)m, bytes);
	r->fd = fd;
	r->device = c->device;
	fake.used_bytes += bytes;
	fake.live.allocations++;
	*p = r->start;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemFree(CUdeviceptr p)
{
	FAKE_ENTER("cuMemFree_v2");
	fake_settle();
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	region *r = starting(region_device, p);
	FAKE_NEED(r != NULL, LMC_CUDA_INVALID_VALUE);
	munmap((void *)(uintptr_t)r->start, r->bytes);
	fake.used_bytes -= r->bytes;
	fake.live.allocations--;
	drop(r);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
	FAKE_ENTER("cuMemGetAddressRange_v2");
	region *r = fake_find(p, 1);
	FAKE_NEED(r != NULL && r->kind != region_host, LMC_CUDA_NOT_FOUND);
	*base = r->start;
	*bytes = r->bytes;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemGetInfo(size_t *free_bytes, size_t *total)
{
	FAKE_ENTER("cuMemGetInfo_v2");
	*free_bytes = fake.memory_bytes - fake.used_bytes;
	*total = fake.memory_bytes;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

// Pieces of memory: a handle is a file descriptor plus one.
CUresult fake_MemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
			unsigned long long flags)
{
	FAKE_ENTER("cuMemCreate");
	FAKE_NEED(prop->type == 1 && prop->requestedHandleTypes == 1 && flags == 0, LMC_CUDA_INVALID_VALUE);
	int fd = memfd_create("fakecuda segment", MFD_CLOEXEC);
	FAKE_NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, LMC_CUDA_OUT_OF_MEMORY);
	*handle = (CUmemGenericAllocationHandle)fd + 1;
	fake.live.segments++;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemExportToShareableHandle(void *os_handle, CUmemGenericAllocationHandle handle, int type,
					 unsigned long long flags)
{
	FAKE_ENTER("cuMemExportToShareableHandle");
	FAKE_NEED(type == 1 && flags == 0, LMC_CUDA_NOT_SUPPORTED);
	int fd = dup((int)handle - 1);
	FAKE_NEED(fd >= 0, LMC_CUDA_INVALID_HANDLE);
	memcpy(os_handle, &fd, sizeof fd);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type)
{
	FAKE_ENTER("cuMemImportFromShareableHandle");
	FAKE_NEED(type == 1, LMC_CUDA_NOT_SUPPORTED);
	int fd = dup((int)(uintptr_t)os_handle);
	FAKE_NEED(fd >= 0, LMC_CUDA_INVALID_VALUE);
	*handle = (CUmemGenericAllocationHandle)fd + 1;
	fake.live.segments++;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemRelease(CUmemGenericAllocationHandle handle)
{
	FAKE_ENTER("cuMemRelease");
	FAKE_NEED(close((int)handle - 1) == 0, LMC_CUDA_INVALID_VALUE);
	fake.live.segments--;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
	FAKE_ENTER("cuMemAddressReserve");
	FAKE_NEED(alignment == 0 && at == 0 && flags == 0, LMC_CUDA_INVALID_VALUE);
	void *m = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	FAKE_NEED(m != MAP_FAILED, LMC_CUDA_OUT_OF_MEMORY);
	*p = add(region_reserved, (uint64_t)(uintptr_t)m, bytes)->start;
	fake.live.mappings++;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemAddressFree(CUdeviceptr p, size_t bytes)
{
	FAKE_ENTER("cuMemAddressFree");
	region *r = starting(region_reserved, p);
	FAKE_NEED(r != NULL && r->bytes == bytes, LMC_CUDA_INVALID_VALUE);
	munmap((void *)(uintptr_t)p, bytes);
	drop(r);
	fake.live.mappings--;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		     unsigned long long flags)
{
	FAKE_ENTER("cuMemMap");
	FAKE_NEED(offset == 0 && flags == 0, LMC_CUDA_INVALID_VALUE);
	void *m = mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle - 1, 0);
	FAKE_LEAVE(m == MAP_FAILED ? LMC_CUDA_INVALID_VALUE : LMC_CUDA_SUCCESS);
}

CUresult fake_MemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *desc, size_t n)
{
	FAKE_ENTER("cuMemSetAccess");
	FAKE_NEED(n == 1 && desc->flags == 3 && desc->location.type == 1, LMC_CUDA_INVALID_VALUE);
	FAKE_NEED(mprotect((void *)(uintptr_t)p, bytes, PROT_READ | PROT_WRITE) == 0, LMC_CUDA_INVALID_VALUE);
	add(region_vmm, p, bytes);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_MemUnmap(CUdeviceptr p, size_t bytes)
{
	FAKE_ENTER("cuMemUnmap");
	region *r = starting(region_vmm, p);
	if (r != NULL)
		drop(r);
	void *m = mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	FAKE_LEAVE(m == MAP_FAILED ? LMC_CUDA_INVALID_VALUE : LMC_CUDA_SUCCESS);
}
