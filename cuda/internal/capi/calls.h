// What Go calls: single functions of the driver through one frame of plain
// numbers, and whole requests in one call.
#ifndef LMCACHE_GO_CUDA_CALLS_H
#define LMCACHE_GO_CUDA_CALLS_H

#include "driver.h"

// The functions of the table by number, in its order.
enum {
#define LMC_NUMBER(name, symbol, required, args) LMC_F_##name,
	LMC_CUDA_FUNCTIONS(LMC_NUMBER)
#undef LMC_NUMBER
	LMC_F_COUNT
};

// lmc_frame carries arguments and results of one call.
typedef struct {
	uint64_t ctx;      // made current first; 0: the function needs none
	uint64_t in[8];    // arguments in the driver's order, without handles and results
	uint64_t out[2];   // results
	uint8_t blob[128]; // a handle, a name, a UUID, the arguments of a kernel
} lmc_frame;

// lmc_cuda_call calls function f of the table.
CUresult lmc_cuda_call(const lmc_cuda *t, int f, lmc_frame *frame);

// lmc_cuda_error_name is the driver's name of a result, or NULL.
const char *lmc_cuda_error_name(const lmc_cuda *t, CUresult r);

// Where the two ends of a request's copies are.
enum {
	LMC_TO_HOST,
	LMC_TO_DEVICE,
	LMC_ANYWHERE, // the driver looks at the addresses
};

// How a request waits and answers.
enum {
	LMC_SYNC_NONE,
	LMC_SYNC_EVENT,    // CUDA IPC event
	LMC_SYNC_TIMELINE, // a number in device memory
};

// lmc_rect is one 2-D copy.
typedef struct {
	uint64_t dst, src, width, height, dst_pitch, src_pitch;
} lmc_rect;

// lmc_job is what one request does on a stream: wait, copy, tell.
typedef struct {
	uint64_t ctx, stream;
	int32_t direction;
	int32_t wait, record;
	uint32_t batch_max; // copies in one call of the driver
	uint64_t wait_address, wait_value;
	uint64_t record_address, record_value;
	uint64_t begin_event; // recorded behind the wait; 0: none
	uint64_t done_event;  // recorded last, also after a failure; 0: none
	uint8_t wait_handle[64];

	// Results. Events belong to the caller.
	uint64_t imported, exported;
	int32_t failed;  // number of the function that failed
	int32_t queued;  // 1: copies may be in the stream; 2: and done_event is not behind them
	uint64_t copies; // copies handed to the driver
	uint8_t exported_handle[64];
} lmc_job;

// lmc_cuda_submit queues a whole request: n copies of size[i] bytes from src[i]
// to dst[i], and the 2-D copies. When it fails, what was queued is told in the
// job, and imported and exported hold what was made until then.
CUresult lmc_cuda_submit(const lmc_cuda *t, lmc_job *job, const uint64_t *dst, const uint64_t *src, const uint64_t *size,
			 size_t n, const lmc_rect *rects, size_t num_rects);

#endif
