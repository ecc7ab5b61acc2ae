#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// nap waits for a change, at most a millisecond: what other processes do
// changes nothing here. The lock is held.
static void nap(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&fake.changed, &fake.mu, &t);
}

// fake_event_page maps the page of a process's events, or makes our own for a
// pid of 0. The lock is held.
fake_slot *fake_event_page(int64_t pid, int fd)
{
	if (pid == 0) {
		if (fake.event_page == NULL) {
			fake.event_fd = memfd_create("fakecuda events", MFD_CLOEXEC);
			if (fake.event_fd < 0 || ftruncate(fake.event_fd, 65536) != 0)
				return NULL;
			void *m = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fake.event_fd, 0);
			fake.event_page = m == MAP_FAILED ? NULL : m;
		}
		return fake.event_page;
	}
	char path[64];
	snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)pid, fd);
	int other = open(path, O_RDWR | O_CLOEXEC);
	if (other < 0)
		return NULL;
	void *m = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
	close(other);
	return m == MAP_FAILED ? NULL : m;
}

// fake_settle waits until nothing runs and no stream waits for another process:
// the real driver frees, unmaps and unpins nothing before that (seen on an H200,
// driver 580). The lock is held.
void fake_settle(void)
{
	for (;;) {
		int waits = 0;
		for (CUstream s = fake.streams; s != NULL; s = s->next)
			waits |= s->foreign || ((s->busy || s->head != NULL) && !s->waiting);
		if (!waits || fake.aborting)
			return;
		nap();
	}
}

static void copy_bytes(uint64_t dst, uint64_t src, size_t n)
{
	if (!fake.no_copies)
		memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n);
}

static void copy_rect(const CUDA_MEMCPY2D *c)
{
	for (size_t i = 0; i < c->Height; i++)
		copy_bytes(c->dstDevice + i * c->dstPitch, c->srcDevice + i * c->srcPitch, c->WidthInBytes);
}

// reached waits until a number is large enough, or the test ends. The lock is
// held.
static void reached(_Atomic uint64_t *number, uint64_t target)
{
	while (atomic_load(number) < target && !fake.aborting)
		nap();
}

// run executes one operation; the lock is held, but for the copying.
static void run(op *o)
{
	switch (o->kind) {
	case op_copy:
		pthread_mutex_unlock(&fake.mu);
		for (size_t i = 0; i < o->n; i++)
			copy_bytes(o->dst[i], o->src[i], o->size[i]);
		pthread_mutex_lock(&fake.mu);
		fake.copies += (int64_t)o->n;
		break;
	case op_rect:
		pthread_mutex_unlock(&fake.mu);
		copy_rect(&o->rect);
		pthread_mutex_lock(&fake.mu);
		fake.copies++;
		break;
	case op_fill:
		memset((void *)(uintptr_t)o->dst[0], (int)o->target, o->size[0]);
		break;
	case op_wait_event:
		reached(&o->slot->done, o->target);
		break;
	case op_record:
		if (o->event != NULL)
			o->event->at_ms = now_ms();
		if (atomic_load(&o->slot->done) < o->target)
			atomic_store(&o->slot->done, o->target);
		break;
	case op_wait_value:
		reached((_Atomic uint64_t *)(uintptr_t)o->dst[0], o->target);
		break;
	case op_write_value:
		atomic_store((_Atomic uint64_t *)(uintptr_t)o->dst[0], o->target);
		break;
	case op_kernel:
		pthread_mutex_unlock(&fake.mu);
		fake_kernel(o);
		pthread_mutex_lock(&fake.mu);
		break;
	}
}

static void free_op(op *o)
{
	free(o->dst);
	free(o->src);
	free(o->size);
	free(o);
}

static void *stream_main(void *arg)
{
	CUstream s = arg;
	pthread_mutex_lock(&fake.mu);
	for (;;) {
		while (s->head == NULL && !s->closing && !fake.aborting)
			pthread_cond_wait(&fake.changed, &fake.mu);
		if (fake.aborting || s->head == NULL)
			break;
		op *o = s->head;
		s->head = o->next;
		if (s->head == NULL)
			s->tail = NULL;
		s->busy = 1;
		s->foreign = o->foreign;
		s->waiting = o->kind == op_wait_event || o->kind == op_wait_value;
		run(o);
		free_op(o);
		s->busy = s->foreign = s->waiting = 0;
		pthread_cond_broadcast(&fake.changed);
	}
	pthread_mutex_unlock(&fake.mu);
	return NULL;
}

// fake_abort_streams ends and frees all streams. The lock is held.
void fake_abort_streams(void)
{
	fake.aborting = 1;
	pthread_cond_broadcast(&fake.changed);
	while (fake.streams != NULL) {
		CUstream s = fake.streams;
		fake.streams = s->next;
		pthread_mutex_unlock(&fake.mu);
		pthread_join(s->thread, NULL);
		pthread_mutex_lock(&fake.mu);
		for (op *o = s->head, *next; o != NULL; o = next) {
			next = o->next;
			free_op(o);
		}
		free(s);
	}
	fake.aborting = 0;
}

// fake_queue gives an operation to a stream. The lock is held.
CUresult fake_queue(CUstream s, op *o)
{
	if (s->tail != NULL)
		s->tail->next = o;
	else
		s->head = o;
	s->tail = o;
	pthread_cond_broadcast(&fake.changed);
	return LMC_CUDA_SUCCESS;
}

// known tells whether s is a stream that was not destroyed.
static int known(CUstream s)
{
	for (CUstream p = fake.streams; p != NULL; p = p->next)
		if (p == s)
			return !p->closing;
	return 0;
}

static op *new_op(enum op_kind kind, size_t n)
{
	op *o = calloc(1, sizeof *o);
	o->kind = kind;
	o->n = n;
	if (n > 0) {
		o->dst = calloc(n, sizeof *o->dst);
		o->src = calloc(n, sizeof *o->src);
		o->size = calloc(n, sizeof *o->size);
	}
	return o;
}

CUresult fake_StreamCreate(CUstream *stream, unsigned int flags)
{
	FAKE_ENTER("cuStreamCreate");
	CUcontext c = fake_current();
	FAKE_NEED(c != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED(flags == 1, LMC_CUDA_INVALID_VALUE);
	CUstream s = calloc(1, sizeof *s);
	s->device = c->device;
	if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
		free(s);
		FAKE_LEAVE(LMC_CUDA_OUT_OF_MEMORY);
	}
	s->next = fake.streams;
	fake.streams = s;
	fake.live.streams++;
	*stream = s;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_StreamDestroy(CUstream s)
{
	FAKE_ENTER("cuStreamDestroy_v2");
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	s->closing = 1; // what is queued still runs; the thread is joined at the reset
	fake.live.streams--;
	pthread_cond_broadcast(&fake.changed);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_StreamQuery(CUstream s)
{
	FAKE_ENTER("cuStreamQuery");
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	FAKE_LEAVE(s->head == NULL && !s->busy ? LMC_CUDA_SUCCESS : LMC_CUDA_NOT_READY);
}

CUresult fake_StreamSynchronize(CUstream s)
{
	FAKE_ENTER("cuStreamSynchronize");
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	while ((s->head != NULL || s->busy) && !fake.aborting)
		pthread_cond_wait(&fake.changed, &fake.mu);
	FAKE_LEAVE(fake.aborting ? LMC_CUDA_DEINITIALIZED : LMC_CUDA_SUCCESS);
}

CUresult fake_EventCreate(CUevent *event, unsigned int flags)
{
	FAKE_ENTER("cuEventCreate");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	FAKE_NEED((flags & 4u) == 0 || (flags & 2u) != 0, LMC_CUDA_INVALID_VALUE);
	CUevent e = calloc(1, sizeof *e);
	e->flags = flags;
	e->slot = &e->own;
	e->shared = -1;
	if ((flags & 4u) != 0) {
		if (fake_event_page(0, -1) == NULL || fake.next_slot >= 4096) {
			free(e);
			FAKE_LEAVE(LMC_CUDA_OUT_OF_MEMORY);
		}
		e->shared = fake.next_slot++;
		e->slot = &fake.event_page[e->shared];
		atomic_store(&e->slot->recorded, 0);
		atomic_store(&e->slot->done, 0);
	}
	fake.live.events++;
	*event = e;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_EventDestroy(CUevent e)
{
	FAKE_ENTER("cuEventDestroy_v2");
	FAKE_NEED(e != NULL, LMC_CUDA_INVALID_HANDLE);
	// A stream may still come to it: its memory stays, which is small.
	fake.live.events--;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_EventRecord(CUevent e, CUstream s)
{
	FAKE_ENTER("cuEventRecord");
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	FAKE_NEED(e->page == NULL, LMC_CUDA_INVALID_HANDLE);
	op *o = new_op(op_record, 0);
	o->event = e;
	o->slot = e->slot;
	o->target = atomic_fetch_add(&e->slot->recorded, 1) + 1;
	FAKE_LEAVE(fake_queue(s, o));
}

CUresult fake_EventQuery(CUevent e)
{
	FAKE_ENTER("cuEventQuery");
	FAKE_LEAVE(atomic_load(&e->slot->done) >= atomic_load(&e->slot->recorded) ? LMC_CUDA_SUCCESS : LMC_CUDA_NOT_READY);
}

CUresult fake_EventSynchronize(CUevent e)
{
	FAKE_ENTER("cuEventSynchronize");
	reached(&e->slot->done, atomic_load(&e->slot->recorded));
	FAKE_LEAVE(fake.aborting ? LMC_CUDA_DEINITIALIZED : LMC_CUDA_SUCCESS);
}

CUresult fake_EventElapsedTime(float *ms, CUevent start, CUevent end)
{
	FAKE_ENTER("cuEventElapsedTime");
	FAKE_NEED((start->flags & 2u) == 0 && (end->flags & 2u) == 0, LMC_CUDA_INVALID_HANDLE);
	*ms = (float)(end->at_ms - start->at_ms);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_IpcGetEventHandle(CUipcEventHandle *handle, CUevent e)
{
	FAKE_ENTER("cuIpcGetEventHandle");
	FAKE_NEED((e->flags & 4u) != 0 && e->shared >= 0, LMC_CUDA_INVALID_HANDLE);
	int64_t words[] = {getpid(), 1, e->shared, getpid(), fake.event_fd};
	memset(handle->reserved, 0, 64);
	memcpy(handle->reserved, words, sizeof words);
	memcpy(handle->reserved + 56, "fakecuda", 8);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_IpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	int64_t words[5];

	FAKE_ENTER("cuIpcOpenEventHandle");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	memcpy(words, handle.reserved, sizeof words);
	FAKE_NEED(memcmp(handle.reserved + 56, "fakecuda", 8) == 0 && words[2] >= 0 && words[2] < 4096, LMC_CUDA_INVALID_VALUE);
	FAKE_NEED(words[0] != getpid(), LMC_CUDA_INVALID_CONTEXT);
	fake_slot *page = fake_event_page(words[3], (int)words[4]);
	FAKE_NEED(page != NULL, LMC_CUDA_INVALID_VALUE);
	CUevent e = calloc(1, sizeof *e);
	e->flags = 6;
	e->page = page; // stays mapped: a stream may wait for it
	e->slot = &page[words[2]];
	e->shared = -1;
	fake.live.events++;
	*event = e;
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

CUresult fake_StreamWaitEvent(CUstream s, CUevent e, unsigned int flags)
{
	FAKE_ENTER("cuStreamWaitEvent");
	FAKE_NEED(known(s) && flags == 0, LMC_CUDA_INVALID_HANDLE);
	op *o = new_op(op_wait_event, 0);
	o->slot = e->slot;
	o->target = atomic_load(&e->slot->recorded);
	o->foreign = e->page != NULL;
	FAKE_LEAVE(fake_queue(s, o));
}

static CUresult value_op(enum op_kind kind, CUstream s, CUdeviceptr p, uint64_t value)
{
	region *r = fake_find(p, 8);
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	FAKE_NEED(r != NULL && p % 8 == 0, LMC_CUDA_INVALID_VALUE);
	op *o = new_op(kind, 1);
	o->dst[0] = p;
	o->target = value;
	o->foreign = kind == op_wait_value && r->kind == region_ipc;
	FAKE_LEAVE(fake_queue(s, o));
}

CUresult fake_StreamWaitValue64(CUstream s, CUdeviceptr p, uint64_t value, unsigned int flags)
{
	FAKE_ENTER("cuStreamWaitValue64_v2");
	FAKE_NEED(flags == 0, LMC_CUDA_INVALID_VALUE);
	return value_op(op_wait_value, s, p, value);
}

CUresult fake_StreamWriteValue64(CUstream s, CUdeviceptr p, uint64_t value, unsigned int flags)
{
	FAKE_ENTER("cuStreamWriteValue64_v2");
	FAKE_NEED(flags == 0, LMC_CUDA_INVALID_VALUE);
	return value_op(op_write_value, s, p, value);
}

CUresult fake_MemsetD8Async(CUdeviceptr p, unsigned char value, size_t n, CUstream s)
{
	FAKE_ENTER("cuMemsetD8Async");
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	FAKE_NEED(fake_find(p, n) != NULL, LMC_CUDA_INVALID_VALUE);
	op *o = new_op(op_fill, 1);
	o->dst[0] = p;
	o->size[0] = n;
	o->target = value;
	FAKE_LEAVE(fake_queue(s, o));
}

// copies checks n copies and queues them as one operation. A copy must lie in
// one region at both ends, and host memory must be pinned: the real driver would
// copy other memory too, but make the caller wait for it.
static CUresult copies(CUdeviceptr *dst, CUdeviceptr *src, size_t *size, size_t n, size_t *failed, CUstream s)
{
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	region *a = NULL, *b = NULL;
	for (size_t i = 0; i < n; i++) {
		// Neighbours mostly lie in the same regions.
		if (a == NULL || dst[i] < a->start || dst[i] - a->start + size[i] > a->bytes)
			a = fake_find(dst[i], size[i]);
		if (b == NULL || src[i] < b->start || src[i] - b->start + size[i] > b->bytes)
			b = fake_find(src[i], size[i]);
		if (a == NULL || b == NULL) {
			if (failed != NULL)
				*failed = i;
			FAKE_LEAVE(LMC_CUDA_INVALID_VALUE);
		}
	}
	if (fake.no_copies)
		n = 0;
	op *o = new_op(op_copy, n);
	if (n > 0) {
		memcpy(o->dst, dst, n * sizeof *dst);
		memcpy(o->src, src, n * sizeof *src);
		memcpy(o->size, size, n * sizeof *size);
	}
	FAKE_LEAVE(fake_queue(s, o));
}

CUresult fake_MemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s)
{
	FAKE_ENTER("cuMemcpyAsync");
	return copies(&dst, &src, &n, 1, NULL, s);
}

static int in_order(const CUmemcpyAttributes *attrs, const size_t *attrs_at, size_t num_attrs, size_t n)
{
	return n > 0 && num_attrs == 1 && attrs_at[0] == 0 && attrs->srcAccessOrder == 1;
}

CUresult fake_MemcpyBatchAsyncV1(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n, CUmemcpyAttributes *attrs,
				 size_t *attrs_at, size_t num_attrs, size_t *failed, CUstream s)
{
	FAKE_ENTER("cuMemcpyBatchAsync");
	FAKE_NEED(in_order(attrs, attrs_at, num_attrs, n) && failed != NULL, LMC_CUDA_INVALID_VALUE);
	return copies(dsts, srcs, sizes, n, failed, s);
}

CUresult fake_MemcpyBatchAsyncV2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n, CUmemcpyAttributes *attrs,
				 size_t *attrs_at, size_t num_attrs, CUstream s)
{
	FAKE_ENTER("cuMemcpyBatchAsync_v2");
	FAKE_NEED(in_order(attrs, attrs_at, num_attrs, n), LMC_CUDA_INVALID_VALUE);
	return copies(dsts, srcs, sizes, n, NULL, s);
}

// side checks one end of a 2-D copy and returns its address, 0 if it is wrong.
static uint64_t side(int type, const void *host, CUdeviceptr device, size_t pitch, const CUDA_MEMCPY2D *c)
{
	uint64_t p = type == LMC_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device;
	if (c->Height == 0 || c->WidthInBytes == 0 || pitch < c->WidthInBytes || pitch > max_pitch)
		return 0;
	region *r = fake_find(p, (c->Height - 1) * pitch + c->WidthInBytes);
	if (r == NULL || (type != LMC_MEMORYTYPE_UNIFIED && (r->kind == region_host) != (type == LMC_MEMORYTYPE_HOST)))
		return 0;
	return p;
}

CUresult fake_Memcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream s)
{
	FAKE_ENTER("cuMemcpy2DAsync_v2");
	FAKE_NEED(known(s), LMC_CUDA_INVALID_HANDLE);
	op *o = new_op(op_rect, 0);
	o->rect = *c;
	o->rect.srcDevice = side(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c);
	o->rect.dstDevice = side(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c);
	if (o->rect.srcDevice == 0 || o->rect.dstDevice == 0) {
		free_op(o);
		FAKE_LEAVE(LMC_CUDA_INVALID_VALUE);
	}
	FAKE_LEAVE(fake_queue(s, o));
}
