#include "calls.h"

#include <string.h>

#define P(type, x) ((type)(uintptr_t)(x))

// TRY ends the function with a failed call's number in the job.
#define TRY(job, f, call)                                                                                              \
	do {                                                                                                           \
		CUresult try_result = (call);                                                                          \
		if (try_result != LMC_CUDA_SUCCESS) {                                                                  \
			(job)->failed = LMC_F_##f;                                                                     \
			return try_result;                                                                             \
		}                                                                                                      \
	} while (0)

enum {
	event_blocking_sync = 1,
	event_disable_timing = 2,
	event_interprocess = 4,
};

static CUresult wait(const lmc_cuda *t, lmc_job *j, CUstream stream)
{
	CUipcEventHandle handle;
	CUevent event = NULL;

	switch (j->wait) {
	case LMC_SYNC_EVENT:
		memcpy(&handle, j->wait_handle, sizeof handle);
		TRY(j, IpcOpenEventHandle, t->IpcOpenEventHandle(&event, handle));
		j->imported = (uint64_t)(uintptr_t)event;
		TRY(j, StreamWaitEvent, t->StreamWaitEvent(stream, event, 0));
		break;
	case LMC_SYNC_TIMELINE:
		TRY(j, StreamWaitValue64,
		    t->StreamWaitValue64 == NULL ? LMC_CUDA_NOT_SUPPORTED
						 : t->StreamWaitValue64(stream, j->wait_address, j->wait_value, 0)); // >=
		break;
	}
	return LMC_CUDA_SUCCESS;
}

// batch hands n copies to the driver in one call.
static CUresult batch(const lmc_cuda *t, lmc_job *j, CUstream stream, const uint64_t *dst, const uint64_t *src,
		      const uint64_t *size, size_t n)
{
	CUmemcpyAttributes in_order = {.srcAccessOrder = 1};
	size_t from = 0, failed = 0;

	// The driver's parameters are not const, and it only reads them.
	if (t->MemcpyBatchAsyncV2 != NULL)
		TRY(j, MemcpyBatchAsyncV2,
		    t->MemcpyBatchAsyncV2(P(uint64_t *, dst), P(uint64_t *, src), P(size_t *, size), n, &in_order, &from, 1, stream));
	else
		TRY(j, MemcpyBatchAsyncV1,
		    t->MemcpyBatchAsyncV1(P(uint64_t *, dst), P(uint64_t *, src), P(size_t *, size), n, &in_order, &from, 1, &failed,
					  stream));
	return LMC_CUDA_SUCCESS;
}

static CUresult runs(const lmc_cuda *t, lmc_job *j, CUstream stream, const uint64_t *dst, const uint64_t *src,
		     const uint64_t *size, size_t n)
{
	_Static_assert(sizeof(size_t) == sizeof(uint64_t), "sizes are passed as they are");
	int batches = t->MemcpyBatchAsyncV2 != NULL || t->MemcpyBatchAsyncV1 != NULL;

	for (size_t i = 0; i < n;) {
		size_t part = batches && n - i > 1 ? n - i : 1;
		if (part > j->batch_max && j->batch_max > 0)
			part = j->batch_max;
		j->queued = 1;
		if (part > 1) {
			CUresult r = batch(t, j, stream, dst + i, src + i, size + i, part);
			if (r != LMC_CUDA_SUCCESS)
				return r;
		} else {
			TRY(j, MemcpyAsync, t->MemcpyAsync(dst[i], src[i], size[i], stream));
		}
		i += part;
		j->copies += part;
	}
	return LMC_CUDA_SUCCESS;
}

static CUresult rectangles(const lmc_cuda *t, lmc_job *j, CUstream stream, const lmc_rect *rects, size_t n)
{
	CUDA_MEMCPY2D c = {
		.srcMemoryType = LMC_MEMORYTYPE_UNIFIED,
		.dstMemoryType = LMC_MEMORYTYPE_UNIFIED,
	};
	if (j->direction == LMC_TO_HOST) {
		c.srcMemoryType = LMC_MEMORYTYPE_DEVICE;
		c.dstMemoryType = LMC_MEMORYTYPE_HOST;
	} else if (j->direction == LMC_TO_DEVICE) {
		c.srcMemoryType = LMC_MEMORYTYPE_HOST;
		c.dstMemoryType = LMC_MEMORYTYPE_DEVICE;
	}
	for (size_t i = 0; i < n; i++) {
		const lmc_rect *r = &rects[i];
		c.srcDevice = r->src;
		c.srcHost = P(const void *, r->src);
		c.srcPitch = r->src_pitch;
		c.dstDevice = r->dst;
		c.dstHost = P(void *, r->dst);
		c.dstPitch = r->dst_pitch;
		c.WidthInBytes = r->width;
		c.Height = r->height;
		j->queued = 1;
		TRY(j, Memcpy2DAsync, t->Memcpy2DAsync(&c, stream));
		j->copies++;
	}
	return LMC_CUDA_SUCCESS;
}

static CUresult record(const lmc_cuda *t, lmc_job *j, CUstream stream)
{
	CUevent event = NULL;
	CUipcEventHandle handle;

	switch (j->record) {
	case LMC_SYNC_EVENT:
		TRY(j, EventCreate, t->EventCreate(&event, event_interprocess | event_disable_timing));
		j->exported = (uint64_t)(uintptr_t)event;
		TRY(j, EventRecord, t->EventRecord(event, stream));
		TRY(j, IpcGetEventHandle, t->IpcGetEventHandle(&handle, event));
		memcpy(j->exported_handle, &handle, sizeof handle);
		break;
	case LMC_SYNC_TIMELINE:
		TRY(j, StreamWriteValue64,
		    t->StreamWriteValue64 == NULL ? LMC_CUDA_NOT_SUPPORTED
						  : t->StreamWriteValue64(stream, j->record_address, j->record_value, 0));
		break;
	}
	return LMC_CUDA_SUCCESS;
}

CUresult lmc_cuda_submit(const lmc_cuda *t, lmc_job *j, const uint64_t *dst, const uint64_t *src, const uint64_t *size,
			 size_t n, const lmc_rect *rects, size_t num_rects)
{
	CUstream stream = P(CUstream, j->stream);
	CUresult r;

	j->imported = j->exported = j->copies = 0;
	j->failed = j->queued = 0;
	TRY(j, CtxSetCurrent, t->CtxSetCurrent(P(CUcontext, j->ctx)));
	r = wait(t, j, stream);
	if (r == LMC_CUDA_SUCCESS && j->begin_event != 0)
		r = t->EventRecord(P(CUevent, j->begin_event), stream);
	if (r == LMC_CUDA_SUCCESS)
		r = runs(t, j, stream, dst, src, size, n);
	if (r == LMC_CUDA_SUCCESS)
		r = rectangles(t, j, stream, rects, num_rects);
	if (r == LMC_CUDA_SUCCESS)
		r = record(t, j, stream);
	if (j->done_event != 0 && (r == LMC_CUDA_SUCCESS || j->queued)) {
		CUresult last = t->EventRecord(P(CUevent, j->done_event), stream);
		if (last != LMC_CUDA_SUCCESS) {
			if (r == LMC_CUDA_SUCCESS) {
				j->failed = LMC_F_EventRecord;
				r = last;
			}
			j->queued = 2; // the caller has to wait for the whole stream
		}
	}
	return r;
}
