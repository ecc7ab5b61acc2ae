// The CUDA driver as this module uses it: the types and structs of the driver
// API that we need, declared here so that building asks for no CUDA, and a
// table of its functions, filled at run time from libcuda.so.1 or from a fake.
//
// The layouts are those of cuda.h of CUDA 12 and 13; the asserts below and a
// Go test hold them.
#ifndef LMCACHE_GO_CUDA_DRIVER_H
#define LMCACHE_GO_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUmemGenericAllocationHandle;

enum {
	LMC_CUDA_SUCCESS = 0,
	LMC_CUDA_INVALID_VALUE = 1,
	LMC_CUDA_OUT_OF_MEMORY = 2,
	LMC_CUDA_NOT_INITIALIZED = 3,
	LMC_CUDA_DEINITIALIZED = 4,
	LMC_CUDA_INVALID_DEVICE = 101,
	LMC_CUDA_INVALID_CONTEXT = 201,
	LMC_CUDA_MAP_FAILED = 205,
	LMC_CUDA_INVALID_HANDLE = 400,
	LMC_CUDA_NOT_FOUND = 500,
	LMC_CUDA_NOT_READY = 600,
	LMC_CUDA_HOST_MEMORY_ALREADY_REGISTERED = 712,
	LMC_CUDA_HOST_MEMORY_NOT_REGISTERED = 713,
	LMC_CUDA_NOT_SUPPORTED = 801,
};

enum {
	LMC_MEMORYTYPE_HOST = 1,
	LMC_MEMORYTYPE_DEVICE = 2,
	LMC_MEMORYTYPE_UNIFIED = 4,
};

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	char reserved[64];
} CUipcEventHandle;

// CUDA_MEMCPY2D of the _v2 functions.
typedef struct {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	void *srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	void *dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int srcAccessOrder; // 1: in the order of the stream
	CUmemLocation srcLocHint, dstLocHint;
	unsigned int flags;
} CUmemcpyAttributes;

typedef struct {
	CUmemLocation location;
	int flags; // 3: read and write
} CUmemAccessDesc;

typedef struct {
	int type;                 // 1: pinned
	int requestedHandleTypes; // 1: a POSIX file descriptor
	CUmemLocation location;   // type 1: a device
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

_Static_assert(sizeof(CUuuid) == 16, "CUuuid");
_Static_assert(sizeof(CUipcMemHandle) == 64, "CUipcMemHandle");
_Static_assert(sizeof(CUipcEventHandle) == 64, "CUipcEventHandle");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D");
_Static_assert(sizeof(CUmemcpyAttributes) == 24, "CUmemcpyAttributes");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");

// LMC_CUDA_FUNCTIONS lists the driver's functions: how we call them, the symbol
// of the driver, whether we can do without (0) or not (1), and the arguments.
#define LMC_CUDA_FUNCTIONS(F)                                                                                          \
	F(Init, "cuInit", 1, (unsigned int flags))                                                                     \
	F(DriverGetVersion, "cuDriverGetVersion", 1, (int *version))                                                   \
	F(GetErrorName, "cuGetErrorName", 0, (CUresult r, const char **text))                                          \
	F(DeviceGetCount, "cuDeviceGetCount", 1, (int *n))                                                             \
	F(DeviceGet, "cuDeviceGet", 1, (CUdevice * dev, int ordinal))                                                  \
	F(DeviceGetUUID, "cuDeviceGetUuid_v2", 1, (CUuuid * uuid, CUdevice dev))                                       \
	F(DeviceGetName, "cuDeviceGetName", 1, (char *name, int len, CUdevice dev))                                    \
	F(DeviceTotalMem, "cuDeviceTotalMem_v2", 1, (size_t * bytes, CUdevice dev))                                    \
	F(DeviceGetAttribute, "cuDeviceGetAttribute", 1, (int *value, int attribute, CUdevice dev))                    \
	F(DeviceGetPCIBusID, "cuDeviceGetPCIBusId", 0, (char *id, int len, CUdevice dev))                              \
	F(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", 0, (int *can, CUdevice dev, CUdevice peer))                    \
	F(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", 0, (CUcontext peer, unsigned int flags))                       \
	F(DevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags_v2", 1, (CUdevice dev, unsigned int flags))            \
	F(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 1, (CUcontext * ctx, CUdevice dev))                      \
	F(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 1, (CUdevice dev))                                  \
	F(CtxSetCurrent, "cuCtxSetCurrent", 1, (CUcontext ctx))                                                        \
	F(IpcGetMemHandle, "cuIpcGetMemHandle", 1, (CUipcMemHandle * handle, CUdeviceptr p))                           \
	F(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 1, (CUdeviceptr * p, CUipcMemHandle handle, unsigned int flags))  \
	F(IpcCloseMemHandle, "cuIpcCloseMemHandle", 1, (CUdeviceptr p))                                                \
	F(IpcGetEventHandle, "cuIpcGetEventHandle", 1, (CUipcEventHandle * handle, CUevent event))                     \
	F(IpcOpenEventHandle, "cuIpcOpenEventHandle", 1, (CUevent * event, CUipcEventHandle handle))                   \
	F(EventCreate, "cuEventCreate", 1, (CUevent * event, unsigned int flags))                                      \
	F(EventRecord, "cuEventRecord", 1, (CUevent event, CUstream stream))                                           \
	F(EventQuery, "cuEventQuery", 1, (CUevent event))                                                              \
	F(EventSynchronize, "cuEventSynchronize", 1, (CUevent event))                                                  \
	F(EventElapsedTime, "cuEventElapsedTime", 0, (float *ms, CUevent start, CUevent end))                          \
	F(EventDestroy, "cuEventDestroy_v2", 1, (CUevent event))                                                       \
	F(StreamCreate, "cuStreamCreate", 1, (CUstream * stream, unsigned int flags))                                  \
	F(StreamDestroy, "cuStreamDestroy_v2", 1, (CUstream stream))                                                   \
	F(StreamWaitEvent, "cuStreamWaitEvent", 1, (CUstream stream, CUevent event, unsigned int flags))               \
	F(StreamWaitValue64, "cuStreamWaitValue64_v2", 0,                                                              \
	  (CUstream stream, CUdeviceptr p, uint64_t value, unsigned int flags))                                        \
	F(StreamWriteValue64, "cuStreamWriteValue64_v2", 0,                                                            \
	  (CUstream stream, CUdeviceptr p, uint64_t value, unsigned int flags))                                        \
	F(StreamQuery, "cuStreamQuery", 1, (CUstream stream))                                                          \
	F(StreamSynchronize, "cuStreamSynchronize", 1, (CUstream stream))                                              \
	F(MemHostRegister, "cuMemHostRegister_v2", 1, (void *p, size_t bytes, unsigned int flags))                     \
	F(MemHostUnregister, "cuMemHostUnregister", 1, (void *p))                                                      \
	F(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", 1, (CUdeviceptr * dev, void *p, unsigned int flags)) \
	F(MemHostAlloc, "cuMemHostAlloc", 1, (void **p, size_t bytes, unsigned int flags))                             \
	F(MemFreeHost, "cuMemFreeHost", 1, (void *p))                                                                  \
	F(MemAlloc, "cuMemAlloc_v2", 1, (CUdeviceptr * p, size_t bytes))                                               \
	F(MemFree, "cuMemFree_v2", 1, (CUdeviceptr p))                                                                 \
	F(MemGetAddressRange, "cuMemGetAddressRange_v2", 1, (CUdeviceptr * base, size_t *bytes, CUdeviceptr p))        \
	F(MemGetInfo, "cuMemGetInfo_v2", 1, (size_t * free, size_t *total))                                            \
	F(MemsetD8Async, "cuMemsetD8Async", 1, (CUdeviceptr p, unsigned char value, size_t n, CUstream stream))        \
	F(MemcpyAsync, "cuMemcpyAsync", 1, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream))              \
	F(Memcpy2DAsync, "cuMemcpy2DAsync_v2", 1, (const CUDA_MEMCPY2D *copy, CUstream stream))                        \
	F(MemcpyBatchAsyncV1, "cuMemcpyBatchAsync", 0,                                                                 \
	  (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t *sizes, size_t n, CUmemcpyAttributes *attrs,                 \
	   size_t *attrs_at, size_t num_attrs, size_t *failed, CUstream stream))                                       \
	F(MemcpyBatchAsyncV2, "cuMemcpyBatchAsync_v2", 0,                                                              \
	  (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t *sizes, size_t n, CUmemcpyAttributes *attrs,                 \
	   size_t *attrs_at, size_t num_attrs, CUstream stream))                                                       \
	F(ModuleLoadDataEx, "cuModuleLoadDataEx", 0,                                                                   \
	  (CUmodule * module, const void *image, unsigned int n, int *options, void **values))                         \
	F(ModuleUnload, "cuModuleUnload", 0, (CUmodule module))                                                        \
	F(ModuleGetFunction, "cuModuleGetFunction", 0, (CUfunction * f, CUmodule module, const char *name))            \
	F(LaunchKernel, "cuLaunchKernel", 0,                                                                           \
	  (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,          \
	   unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra))                        \
	F(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", 0,                                           \
	  (CUmemGenericAllocationHandle * handle, void *os_handle, int type))                                          \
	F(MemExportToShareableHandle, "cuMemExportToShareableHandle", 0,                                               \
	  (void *os_handle, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))                  \
	F(MemCreate, "cuMemCreate", 0,                                                                                 \
	  (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,                       \
	   unsigned long long flags))                                                                                  \
	F(MemRelease, "cuMemRelease", 0, (CUmemGenericAllocationHandle handle))                                        \
	F(MemAddressReserve, "cuMemAddressReserve", 0,                                                                 \
	  (CUdeviceptr * p, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags))                 \
	F(MemAddressFree, "cuMemAddressFree", 0, (CUdeviceptr p, size_t bytes))                                        \
	F(MemMap, "cuMemMap", 0,                                                                                       \
	  (CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
	F(MemUnmap, "cuMemUnmap", 0, (CUdeviceptr p, size_t bytes))                                                    \
	F(MemSetAccess, "cuMemSetAccess", 0, (CUdeviceptr p, size_t bytes, const CUmemAccessDesc *desc, size_t n))

// lmc_cuda is the table.
typedef struct {
#define LMC_FIELD(name, symbol, required, args) CUresult(*name) args;
	LMC_CUDA_FUNCTIONS(LMC_FIELD)
#undef LMC_FIELD
} lmc_cuda;

// lmc_cuda_symbol describes entry i of the table; NULL behind the last.
const char *lmc_cuda_symbol(int i, int *required);

// lmc_cuda_set puts a function into entry i.
void lmc_cuda_set(lmc_cuda *t, int i, void *function);

#endif
