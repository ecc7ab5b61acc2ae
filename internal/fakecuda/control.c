#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

fake_state fake = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .event_fd = -1};

static const char *const names[] = {
#define FAKE_NAME(name, symbol, required, args) symbol,
	LMC_CUDA_FUNCTIONS(FAKE_NAME)
#undef FAKE_NAME
};

enum { num_functions = sizeof names / sizeof names[0] };

static int64_t calls[num_functions], all_calls;

// The call that fails: the fail_nth of fail_symbol, or of any for -1.
static int fail_symbol = -2, fail_result;
static int64_t fail_nth;

static int number(const char *symbol)
{
	for (int i = 0; i < num_functions; i++)
		if (strcmp(names[i], symbol) == 0)
			return i;
	return -2;
}

void *lmc_fake_symbol(const char *symbol)
{
	static const struct {
		const char *symbol;
		void (*f)(void);
	} table[] = {
#define FAKE_ENTRY(name, symbol, required, args) {symbol, (void (*)(void))fake_##name},
		LMC_CUDA_FUNCTIONS(FAKE_ENTRY)
#undef FAKE_ENTRY
	};
	void *p = NULL;
	int i = number(symbol);
	if (i >= 0)
		memcpy(&p, &table[i].f, sizeof p);
	return p;
}

CUresult fake_enter(const char *symbol)
{
	int i = number(symbol);
	pthread_mutex_lock(&fake.mu);
	calls[i]++;
	all_calls++;
	if ((fail_symbol == i || fail_symbol == -1) && --fail_nth == 0) {
		fail_symbol = -2;
		pthread_mutex_unlock(&fake.mu);
		return fail_result;
	}
	if (!fake.initialized && strcmp(symbol, "cuInit") != 0) {
		pthread_mutex_unlock(&fake.mu);
		return LMC_CUDA_NOT_INITIALIZED;
	}
	return LMC_CUDA_SUCCESS;
}

void lmc_fake_fail(const char *symbol, int64_t nth, int result)
{
	pthread_mutex_lock(&fake.mu);
	fail_symbol = nth == 0 ? -2 : symbol[0] == '\0' ? -1 : number(symbol);
	fail_nth = nth;
	fail_result = result;
	pthread_mutex_unlock(&fake.mu);
}

int64_t lmc_fake_calls(const char *symbol)
{
	pthread_mutex_lock(&fake.mu);
	int i = symbol[0] == '\0' ? -1 : number(symbol);
	int64_t n = i == -1 ? all_calls : i < 0 ? -1 : calls[i];
	pthread_mutex_unlock(&fake.mu);
	return n;
}

lmc_live lmc_fake_live(void)
{
	pthread_mutex_lock(&fake.mu);
	lmc_live live = fake.live;
	pthread_mutex_unlock(&fake.mu);
	return live;
}

void lmc_fake_no_copies(int off)
{
	pthread_mutex_lock(&fake.mu);
	fake.no_copies = off;
	pthread_mutex_unlock(&fake.mu);
}

void lmc_fake_start(int devices, int version, uint64_t memory_bytes)
{
	pthread_mutex_lock(&fake.mu);
	fake.devices = devices;
	fake.version = version;
	fake.memory_bytes = memory_bytes;
	pthread_mutex_unlock(&fake.mu);
}

// lmc_fake_reset ends all streams, also those that wait, and frees everything.
int lmc_fake_reset(void)
{
	pthread_mutex_lock(&fake.mu);
	fake_abort_streams();
	for (region *r = fake.regions, *next; r != NULL; r = next) {
		next = r->next;
		if (r->kind != region_host || r->owned)
			munmap((void *)(uintptr_t)r->start, r->bytes);
		if (r->fd >= 0)
			close(r->fd);
		free(r);
	}
	for (CUcontext c = fake.contexts, next; c != NULL; c = next) {
		next = c->next;
		free(c);
	}
	for (CUfunction f = fake.functions, next; f != NULL; f = next) {
		next = f->next;
		free(f);
	}
	if (fake.event_page != NULL) {
		munmap(fake.event_page, 65536);
		close(fake.event_fd);
	}
	memset(fake.retained, 0, sizeof fake.retained);
	memset(fake.primary, 0, sizeof fake.primary);
	memset(&fake.live, 0, sizeof fake.live);
	memset(calls, 0, sizeof calls);
	all_calls = fake.copies = 0;
	fake.regions = NULL;
	fake.contexts = NULL;
	fake.functions = NULL;
	fake.event_page = NULL;
	fake.event_fd = -1;
	fake.next_slot = 0;
	fake.used_bytes = 0;
	fake.initialized = fake.no_copies = 0;
	fail_symbol = -2;
	pthread_mutex_unlock(&fake.mu);
	return 0; // cgo compiles no function without argument and result under -Wextra
}

// Handles: what the driver writes as far as it is known, then what we need.
static void mem_handle(unsigned char h[64], int64_t pid, int64_t real_pid, int fd, uint64_t bytes)
{
	static int64_t serial;
	int64_t words[] = {serial++, pid, (int64_t)bytes, real_pid, fd};
	memset(h, 0, 64);
	memcpy(h, words, sizeof words);
	memcpy(h + 56, "fakecuda", 8);
}

int lmc_fake_export(int64_t pid, uint64_t bytes, unsigned char handle[64], uint64_t *address)
{
	int fd = memfd_create("fakecuda", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		return -1;
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		close(fd);
		return -1;
	}
	*address = (uint64_t)(uintptr_t)p;
	mem_handle(handle, pid, getpid(), fd, bytes);
	return fd;
}

CUresult fake_IpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
	FAKE_ENTER("cuIpcGetMemHandle");
	FAKE_NEED(fake_current() != NULL, LMC_CUDA_INVALID_CONTEXT);
	region *r = fake_find(p, 1);
	FAKE_NEED(r != NULL && r->kind == region_device, LMC_CUDA_INVALID_VALUE);
	mem_handle((unsigned char *)handle->reserved, getpid(), getpid(), r->fd, r->bytes);
	FAKE_LEAVE(LMC_CUDA_SUCCESS);
}

int lmc_fake_export_event(int64_t pid, unsigned char handle[64])
{
	pthread_mutex_lock(&fake.mu);
	int slot = -1;
	if (fake_event_page(0, -1) != NULL && fake.next_slot < 4096) {
		slot = fake.next_slot++;
		atomic_store(&fake.event_page[slot].recorded, 1);
		atomic_store(&fake.event_page[slot].done, 0);
		int64_t words[] = {pid, 1, slot, getpid(), fake.event_fd};
		memset(handle, 0, 64);
		memcpy(handle, words, sizeof words);
		memcpy(handle + 56, "fakecuda", 8);
	}
	pthread_mutex_unlock(&fake.mu);
	return slot;
}

void lmc_fake_fire(int slot)
{
	pthread_mutex_lock(&fake.mu);
	if (fake.event_page != NULL && slot >= 0) {
		atomic_store(&fake.event_page[slot].done, atomic_load(&fake.event_page[slot].recorded));
		pthread_cond_broadcast(&fake.changed);
	}
	pthread_mutex_unlock(&fake.mu);
}

// lmc_fake_event_done looks at an event that this process exported, as another
// process would; -1 for none.
int lmc_fake_event_done(const unsigned char handle[64])
{
	int64_t words[5];
	int done = -1;
	memcpy(words, handle, sizeof words);
	pthread_mutex_lock(&fake.mu);
	if (memcmp(handle + 56, "fakecuda", 8) == 0 && fake.event_page != NULL && words[2] >= 0 && words[2] < 4096) {
		fake_slot *s = &fake.event_page[words[2]];
		done = atomic_load(&s->done) >= atomic_load(&s->recorded);
	}
	pthread_mutex_unlock(&fake.mu);
	return done;
}
