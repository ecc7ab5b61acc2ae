// One request through the shim on the fake driver: copies of both kinds, an
// event that is told, and every call of the driver failing in turn. Run it
// under a sanitizer (CMakeLists.txt, SANITIZE).
#include "calls.h"
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lmc_cuda table;

static uint64_t call(int f, uint64_t ctx, uint64_t a, uint64_t b, uint64_t c)
{
	lmc_frame frame = {.ctx = ctx, .in = {a, b, c}};
	CUresult r = lmc_cuda_call(&table, f, &frame);
	if (r != LMC_CUDA_SUCCESS) {
		fprintf(stderr, "function %d: result %d\n", f, r);
		exit(1);
	}
	return frame.out[0];
}

static int request(int64_t fail)
{
	enum { n = 700, piece = 64 };
	static uint64_t dst[n], src[n], size[n];
	int required, bad = 0;

	lmc_fake_reset();
	lmc_fake_start(1, 13000, 1 << 30);
	for (int i = 0; lmc_cuda_symbol(i, &required) != NULL; i++)
		lmc_cuda_set(&table, i, lmc_fake_symbol(lmc_cuda_symbol(i, &required)));
	call(LMC_F_Init, 0, 0, 0, 0);
	uint64_t ctx = call(LMC_F_DevicePrimaryCtxRetain, 0, 0, 0, 0);
	uint64_t device = call(LMC_F_MemAlloc, ctx, n * piece, 0, 0);
	uint64_t host = call(LMC_F_MemHostAlloc, ctx, 2 * n * piece, 3, 0);
	uint64_t stream = call(LMC_F_StreamCreate, ctx, 1, 0, 0);
	uint64_t done = call(LMC_F_EventCreate, ctx, 3, 0, 0);
	memset((void *)(uintptr_t)device, 7, n * piece);
	for (int i = 0; i < n; i++) {
		dst[i] = host + (uint64_t)(n - 1 - i) * piece;
		src[i] = device + (uint64_t)i * piece;
		size[i] = piece;
	}
	lmc_rect rect = {.dst = host + n * piece, .src = device, .width = piece, .height = n, .dst_pitch = piece, .src_pitch = piece};
	lmc_job job = {.ctx = ctx, .stream = stream, .direction = LMC_TO_HOST, .record = LMC_SYNC_EVENT, .batch_max = 512, .done_event = done};
	lmc_fake_fail("", fail, LMC_CUDA_OUT_OF_MEMORY);
	CUresult r = lmc_cuda_submit(&table, &job, dst, src, size, n, &rect, 1);
	lmc_fake_fail("", 0, 0);
	call(LMC_F_StreamSynchronize, ctx, stream, 0, 0);
	for (int i = 0; i < 2 * n * piece; i++)
		bad += ((const char *)(uintptr_t)host)[i] != 7;
	printf("failing call %lld: result %d, %llu copies, %d bytes missing\n", (long long)fail, r, (unsigned long long)job.copies, bad);
	lmc_fake_reset();
	return r != LMC_CUDA_SUCCESS || bad == 0 ? r : -1;
}

int main(void)
{
	for (int64_t fail = 1;; fail++) {
		int r = request(fail);
		if (r < 0)
			return 1;
		if (r == LMC_CUDA_SUCCESS)
			return fail > 5 ? 0 : 1;
	}
}
