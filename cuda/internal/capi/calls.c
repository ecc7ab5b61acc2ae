#include "calls.h"

#include <string.h>

#define P(type, x) ((type)(uintptr_t)(x))

// has tells whether the driver has function f.
static int has(const lmc_cuda *t, int f)
{
	void *p;
	memcpy(&p, (const char *)t + (size_t)f * sizeof p, sizeof p);
	return p != NULL;
}

static CUresult launch(const lmc_cuda *t, lmc_frame *c)
{
	// in: function, grid x, block x, shared bytes, stream, argument bytes
	size_t bytes = c->in[5];
	void *extra[] = {P(void *, 1), c->blob, P(void *, 2), &bytes, NULL};
	return t->LaunchKernel(P(CUfunction, c->in[0]), (unsigned)c->in[1], 1, 1, (unsigned)c->in[2], 1, 1, (unsigned)c->in[3],
			       P(CUstream, c->in[4]), NULL, extra);
}

static CUresult mem_create(const lmc_cuda *t, lmc_frame *c)
{
	CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, (int)c->in[1]}};
	return t->MemCreate(P(CUmemGenericAllocationHandle *, &c->out[0]), c->in[0], &prop, 0);
}

static CUresult set_access(const lmc_cuda *t, lmc_frame *c)
{
	CUmemAccessDesc desc = {.location = {1, (int)c->in[2]}, .flags = 3};
	return t->MemSetAccess(c->in[0], c->in[1], &desc, 1);
}

// values of driver types narrower than the frame's.
static CUresult device_call(const lmc_cuda *t, int f, lmc_frame *c)
{
	int value = 0;
	CUresult r;
	switch (f) {
	case LMC_F_DriverGetVersion:
		r = t->DriverGetVersion(&value);
		break;
	case LMC_F_DeviceGetCount:
		r = t->DeviceGetCount(&value);
		break;
	case LMC_F_DeviceGet:
		r = t->DeviceGet(&value, (int)c->in[0]);
		break;
	case LMC_F_DeviceGetAttribute:
		r = t->DeviceGetAttribute(&value, (int)c->in[0], (int)c->in[1]);
		break;
	default:
		r = t->DeviceCanAccessPeer(&value, (int)c->in[0], (int)c->in[1]);
		break;
	}
	c->out[0] = (uint64_t)(int64_t)value;
	return r;
}

CUresult lmc_cuda_call(const lmc_cuda *t, int f, lmc_frame *c)
{
	CUipcMemHandle mem;
	CUipcEventHandle event;
	CUresult r;

	if (f < 0 || f >= LMC_F_COUNT || !has(t, f))
		return LMC_CUDA_NOT_SUPPORTED;
	if (c->ctx != 0 && (r = t->CtxSetCurrent(P(CUcontext, c->ctx))) != LMC_CUDA_SUCCESS)
		return r;
	switch (f) {
	case LMC_F_Init:
		return t->Init(0);
	case LMC_F_DriverGetVersion:
	case LMC_F_DeviceGetCount:
	case LMC_F_DeviceGet:
	case LMC_F_DeviceGetAttribute:
	case LMC_F_DeviceCanAccessPeer:
		return device_call(t, f, c);
	case LMC_F_DeviceGetUUID:
		return t->DeviceGetUUID(P(CUuuid *, c->blob), (int)c->in[0]);
	case LMC_F_DeviceGetName:
		return t->DeviceGetName(P(char *, c->blob), (int)sizeof c->blob, (int)c->in[0]);
	case LMC_F_DeviceTotalMem:
		return t->DeviceTotalMem(P(size_t *, &c->out[0]), (int)c->in[0]);
	case LMC_F_DeviceGetPCIBusID:
		return t->DeviceGetPCIBusID(P(char *, c->blob), (int)sizeof c->blob, (int)c->in[0]);
	case LMC_F_CtxEnablePeerAccess:
		return t->CtxEnablePeerAccess(P(CUcontext, c->in[0]), 0);
	case LMC_F_DevicePrimaryCtxSetFlags:
		return t->DevicePrimaryCtxSetFlags((int)c->in[0], (unsigned)c->in[1]);
	case LMC_F_DevicePrimaryCtxRetain:
		return t->DevicePrimaryCtxRetain(P(CUcontext *, &c->out[0]), (int)c->in[0]);
	case LMC_F_DevicePrimaryCtxRelease:
		return t->DevicePrimaryCtxRelease((int)c->in[0]);
	case LMC_F_IpcGetMemHandle:
		return t->IpcGetMemHandle(P(CUipcMemHandle *, c->blob), c->in[0]);
	case LMC_F_IpcOpenMemHandle:
		memcpy(&mem, c->blob, sizeof mem);
		return t->IpcOpenMemHandle(&c->out[0], mem, 1); // with peer access when first needed
	case LMC_F_IpcCloseMemHandle:
		return t->IpcCloseMemHandle(c->in[0]);
	case LMC_F_IpcGetEventHandle:
		return t->IpcGetEventHandle(P(CUipcEventHandle *, c->blob), P(CUevent, c->in[0]));
	case LMC_F_IpcOpenEventHandle:
		memcpy(&event, c->blob, sizeof event);
		return t->IpcOpenEventHandle(P(CUevent *, &c->out[0]), event);
	case LMC_F_EventCreate:
		return t->EventCreate(P(CUevent *, &c->out[0]), (unsigned)c->in[0]);
	case LMC_F_EventRecord:
		return t->EventRecord(P(CUevent, c->in[0]), P(CUstream, c->in[1]));
	case LMC_F_EventQuery:
		return t->EventQuery(P(CUevent, c->in[0]));
	case LMC_F_EventSynchronize:
		return t->EventSynchronize(P(CUevent, c->in[0]));
	case LMC_F_EventElapsedTime:
		return t->EventElapsedTime(P(float *, c->blob), P(CUevent, c->in[0]), P(CUevent, c->in[1]));
	case LMC_F_EventDestroy:
		return t->EventDestroy(P(CUevent, c->in[0]));
	case LMC_F_StreamCreate:
		return t->StreamCreate(P(CUstream *, &c->out[0]), (unsigned)c->in[0]);
	case LMC_F_StreamDestroy:
		return t->StreamDestroy(P(CUstream, c->in[0]));
	case LMC_F_StreamWaitEvent:
		return t->StreamWaitEvent(P(CUstream, c->in[0]), P(CUevent, c->in[1]), 0);
	case LMC_F_StreamWaitValue64:
		return t->StreamWaitValue64(P(CUstream, c->in[0]), c->in[1], c->in[2], 0);
	case LMC_F_StreamWriteValue64:
		return t->StreamWriteValue64(P(CUstream, c->in[0]), c->in[1], c->in[2], 0);
	case LMC_F_StreamQuery:
		return t->StreamQuery(P(CUstream, c->in[0]));
	case LMC_F_StreamSynchronize:
		return t->StreamSynchronize(P(CUstream, c->in[0]));
	case LMC_F_MemHostRegister:
		return t->MemHostRegister(P(void *, c->in[0]), c->in[1], (unsigned)c->in[2]);
	case LMC_F_MemHostUnregister:
		return t->MemHostUnregister(P(void *, c->in[0]));
	case LMC_F_MemHostGetDevicePointer:
		return t->MemHostGetDevicePointer(&c->out[0], P(void *, c->in[0]), 0);
	case LMC_F_MemHostAlloc:
		return t->MemHostAlloc(P(void **, &c->out[0]), c->in[0], (unsigned)c->in[1]);
	case LMC_F_MemFreeHost:
		return t->MemFreeHost(P(void *, c->in[0]));
	case LMC_F_MemAlloc:
		return t->MemAlloc(&c->out[0], c->in[0]);
	case LMC_F_MemFree:
		return t->MemFree(c->in[0]);
	case LMC_F_MemGetAddressRange:
		return t->MemGetAddressRange(&c->out[0], P(size_t *, &c->out[1]), c->in[0]);
	case LMC_F_MemGetInfo:
		return t->MemGetInfo(P(size_t *, &c->out[0]), P(size_t *, &c->out[1]));
	case LMC_F_MemsetD8Async:
		return t->MemsetD8Async(c->in[0], (unsigned char)c->in[1], c->in[2], P(CUstream, c->in[3]));
	case LMC_F_MemcpyAsync:
		return t->MemcpyAsync(c->in[0], c->in[1], c->in[2], P(CUstream, c->in[3]));
	case LMC_F_ModuleLoadDataEx:
		return t->ModuleLoadDataEx(P(CUmodule *, &c->out[0]), P(const void *, c->in[0]), 0, NULL, NULL);
	case LMC_F_ModuleUnload:
		return t->ModuleUnload(P(CUmodule, c->in[0]));
	case LMC_F_ModuleGetFunction:
		return t->ModuleGetFunction(P(CUfunction *, &c->out[0]), P(CUmodule, c->in[0]), P(const char *, c->blob));
	case LMC_F_LaunchKernel:
		return c->in[5] <= sizeof c->blob ? launch(t, c) : LMC_CUDA_INVALID_VALUE;
	case LMC_F_MemImportFromShareableHandle: // in: file descriptor
		return t->MemImportFromShareableHandle(P(CUmemGenericAllocationHandle *, &c->out[0]), P(void *, c->in[0]), 1);
	case LMC_F_MemExportToShareableHandle: // out: file descriptor
		return t->MemExportToShareableHandle(&c->out[0], c->in[0], 1, 0);
	case LMC_F_MemCreate:
		return mem_create(t, c);
	case LMC_F_MemRelease:
		return t->MemRelease(c->in[0]);
	case LMC_F_MemAddressReserve:
		return t->MemAddressReserve(&c->out[0], c->in[0], 0, 0, 0);
	case LMC_F_MemAddressFree:
		return t->MemAddressFree(c->in[0], c->in[1]);
	case LMC_F_MemMap:
		return t->MemMap(c->in[0], c->in[1], 0, c->in[2], 0);
	case LMC_F_MemUnmap:
		return t->MemUnmap(c->in[0], c->in[1]);
	case LMC_F_MemSetAccess:
		return set_access(t, c);
	default:
		return LMC_CUDA_NOT_SUPPORTED;
	}
}
