// A CUDA driver without a GPU, for tests. Device memory is host memory that
// other processes can map, streams are threads, and calls fail when told to.
//
// One lock guards everything; it is not held while bytes are copied.
#ifndef LMCACHE_GO_FAKECUDA_H
#define LMCACHE_GO_FAKECUDA_H

#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>

// lmc_live counts objects that exist.
typedef struct {
	int64_t contexts, streams, events, allocations, mappings, registrations, host_allocations, modules, segments;
} lmc_live;

enum { max_devices = 8, max_pitch = 0x7fffffff };

// What a process tells others of an event: numbers in shared memory.
typedef struct {
	_Atomic uint64_t recorded, done;
} fake_slot;

enum region_kind {
	region_device,  // cuMemAlloc
	region_ipc,     // of another process
	region_vmm,     // mapped pieces
	region_host,    // registered or allocated host memory
	region_reserved // addresses without memory
};

// region is a range of addresses that copies may touch.
typedef struct region {
	struct region *next;
	enum region_kind kind;
	uint64_t start, bytes;
	int device, fd, refs;
	int64_t pid;
	CUcontext ctx; // of registered host memory
	int owned;     // host memory to be unmapped
	char key[64];  // handle of region_ipc
} region;

struct CUctx_st {
	struct CUctx_st *next;
	int device, alive;
};

struct CUevent_st {
	fake_slot *slot, own;
	unsigned int flags;
	double at_ms;
	int shared; // slot number in the process's page, -1 for none
	void *page; // of another process
};

struct CUmod_st {
	char *text;
};

struct CUfunc_st {
	struct CUfunc_st *next;
	char name[64];
};

enum op_kind { op_copy, op_rect, op_fill, op_wait_event, op_record, op_wait_value, op_write_value, op_kernel };

typedef struct op {
	struct op *next;
	enum op_kind kind;
	CUevent event;
	fake_slot *slot;
	uint64_t target;
	int foreign; // it waits for another process
	size_t n;
	uint64_t *dst, *src;
	size_t *size;
	CUDA_MEMCPY2D rect;
	CUfunction function;
	unsigned char args[128];
} op;

struct CUstream_st {
	struct CUstream_st *next;
	pthread_t thread;
	op *head, *tail;
	int busy, closing, device;
	int foreign; // waits for another process
	int waiting; // for anything
};

// state is everything; all of it is guarded by mu but what copies touch.
typedef struct {
	pthread_mutex_t mu;
	pthread_cond_t changed;
	int devices, initialized, version, aborting, no_copies;
	uint64_t memory_bytes, used_bytes;
	int retained[max_devices];
	CUcontext primary[max_devices], contexts;
	region *regions;
	CUstream streams;
	CUfunction functions;
	lmc_live live;
	int event_fd;
	fake_slot *event_page;
	int next_slot;
	int64_t copies;
} fake_state;

extern fake_state fake;

// enter counts a call and says what it has to fail with; with lock it returns
// holding the lock when it returns success.
CUresult fake_enter(const char *symbol);
CUcontext fake_current(void);

region *fake_find(uint64_t p, size_t n);
CUresult fake_queue(CUstream s, op *o);
void fake_abort_streams(void);
void fake_kernel(const op *o);
fake_slot *fake_event_page(int64_t pid, int fd);
void fake_settle(void);

// The driver's functions, for the table.
#define FAKE_DECLARE(name, symbol, required, args) CUresult fake_##name args;
LMC_CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

// For Go.
void *lmc_fake_symbol(const char *name);
void lmc_fake_start(int devices, int version, uint64_t memory_bytes);
int lmc_fake_reset(void);
void lmc_fake_fail(const char *symbol, int64_t nth, int result);
int64_t lmc_fake_calls(const char *symbol);
lmc_live lmc_fake_live(void);
void lmc_fake_no_copies(int off);
int lmc_fake_export(int64_t pid, uint64_t bytes, unsigned char handle[64], uint64_t *address);
int lmc_fake_export_event(int64_t pid, unsigned char handle[64]);
void lmc_fake_fire(int slot);
int lmc_fake_event_done(const unsigned char handle[64]);

#define FAKE_ENTER(symbol)                                                                                             \
	do {                                                                                                           \
		CUresult fake_result = fake_enter(symbol);                                                             \
		if (fake_result != LMC_CUDA_SUCCESS)                                                                   \
			return fake_result;                                                                            \
	} while (0)

// FAKE_LEAVE unlocks and returns.
#define FAKE_LEAVE(result)                                                                                             \
	do {                                                                                                           \
		CUresult fake_result = (result);                                                                       \
		pthread_mutex_unlock(&fake.mu);                                                                        \
		return fake_result;                                                                                    \
	} while (0)

#define FAKE_NEED(condition, result)                                                                                   \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			FAKE_LEAVE(result);                                                                            \
	} while (0)

#endif
