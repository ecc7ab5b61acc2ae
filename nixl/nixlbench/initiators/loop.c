// A bare C loop over NIXL's C API, the yardstick of `lmcache-go nixl bench
// --compare c`. It speaks the lines that package pair describes, as an
// initiator. Build: cc -O2 -o loop loop.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void *lib;

static void *sym(const char *name)
{
	char full[128];
	snprintf(full, sizeof full, "nixl_capi_%s", name);
	void *p = dlsym(lib, full);
	if (p == NULL) {
		printf("error %s is missing\n", full);
		exit(1);
	}
	return p;
}

#define F(name, params) ((int(*) params)sym(#name))
#define TRY(call)                                                                                                      \
	do {                                                                                                           \
		int status_ = (call);                                                                                  \
		if (status_ != 0 && status_ != 1) {                                                                    \
			printf("error %s: status %d\n", #call, status_);                                               \
			fflush(stdout);                                                                                \
			return 0;                                                                                      \
		}                                                                                                      \
	} while (0)

static int64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *agent, *opts;
static char remote_name[256];
static int mem, dev, far_mem, far_dev;
static uintptr_t base, far_base;
static size_t size;

// pattern and checks, as in memory.go.
static uint64_t word(uint64_t off, uint64_t seed)
{
	return (off / 8 + 1) * ((seed * 0x9e3779b97f4a7c15ULL) | 1);
}

static uint8_t *stage; // host copy of GPU memory
static int (*dtoh)(void *, uintptr_t, size_t), (*htod)(uintptr_t, const void *, size_t);

static uint64_t *view(void)
{
	if (mem == 0)
		return (uint64_t *)base;
	if (stage == NULL)
		stage = malloc(size);
	dtoh(stage, base, size);
	return (uint64_t *)stage;
}

static void fill(uint64_t seed)
{
	uint64_t *p = view();
	for (size_t i = 0; i < size / 8; i++)
		p[i] = word(i * 8, seed);
	if (mem != 0)
		htod(base, p, size);
	puts("ok");
}

static void check(uint64_t seed, uint64_t old, size_t len, size_t count, size_t stride)
{
	uint64_t *p = view();
	for (size_t i = 0; i < size / 8; i++) {
		size_t at = i * 8, k = at / stride;
		uint64_t want = k < count && at - k * stride < len ? seed : old;
		if (p[i] != word(at, want)) {
			printf("error byte %zu holds %016lx, want the pattern of %lu\n", at, (unsigned long)p[i],
			       (unsigned long)want);
			return;
		}
	}
	puts("ok");
}

static size_t decode(const char *in, uint8_t *out)
{
	uint32_t bits = 0;
	int have = 0;
	size_t n = 0;
	for (; *in != 0 && *in != '='; in++) {
		char c = *in;
		uint32_t v = c >= 'A' && c <= 'Z'   ? (uint32_t)(c - 'A')
			     : c >= 'a' && c <= 'z' ? (uint32_t)(c - 'a') + 26
			     : c >= '0' && c <= '9' ? (uint32_t)(c - '0') + 52
			     : c == '+'             ? 62
						    : 63;
		bits = bits << 6 | v;
		have += 6;
		if (have >= 8) {
			have -= 8;
			out[n++] = (uint8_t)(bits >> have);
		}
	}
	return n;
}

static int cuda_memory(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda == NULL)
		return -1;
	void *ctx = NULL;
	int d = 0;
	dtoh = (int (*)(void *, uintptr_t, size_t))dlsym(cuda, "cuMemcpyDtoH_v2");
	htod = (int (*)(uintptr_t, const void *, size_t))dlsym(cuda, "cuMemcpyHtoD_v2");
	int st = ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
	st = st != 0 ? st : ((int (*)(int *, int))dlsym(cuda, "cuDeviceGet"))(&d, dev);
	st = st != 0 ? st : ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&ctx, d);
	st = st != 0 ? st : ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(ctx);
	st = st != 0 ? st : ((int (*)(uintptr_t *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&base, size);
	return st;
}

// start MEM DEV SIZE PARAMS target NAME BLOB MEM DEV ADDR SIZE
static int start(char *line)
{
	static char params[1024], name[256], blob[1 << 20];
	static uint8_t raw[1 << 20];
	if (sscanf(line, "start %d %d %zu %1023s target %255s %1048575s %d %d %lu", &mem, &dev, &size, params,
		   remote_name, blob, &far_mem, &far_dev, (unsigned long *)&far_base) != 9) {
		puts("error the start line makes no sense");
		return 0;
	}
	if (mem == 0) {
		void *p = mmap(NULL, size + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		base = ((uintptr_t)p + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1);
		madvise((void *)base, size, MADV_HUGEPAGE);
		memset((void *)base, 0, size);
	} else if (cuda_memory() != 0) {
		puts("error no GPU memory");
		return 0;
	}
	struct {
		bool progress, listen;
		int32_t port, sync;
		uint32_t workers;
		uint64_t progress_delay, listen_delay;
		bool telemetry;
	} config = {.progress = true, .sync = 2, .listen_delay = 100000};
	snprintf(name, sizeof name, "c-%d", (int)getpid());
	TRY(F(create_configured_agent, (const char *, void *, void **))(name, &config, &agent));
	void *map, *backend;
	TRY(F(create_params, (void **))(&map));
	for (char *kv = strtok(params, ";"); kv != NULL; kv = strtok(NULL, ";")) {
		char *eq = strchr(kv, '=');
		if (eq == NULL || strcmp(kv, "num_threads=0") == 0)
			continue;
		*eq = 0;
		TRY(F(params_add, (void *, const char *, const char *))(map, kv, eq + 1));
	}
	TRY(F(create_backend, (void *, const char *, void *, void **))(agent, "UCX", map, &backend));
	TRY(F(create_opt_args, (void **))(&opts));
	TRY(F(opt_args_add_backend, (void *, void *))(opts, backend));
	void *regs;
	TRY(F(create_reg_dlist, (int, void **))(mem, &regs));
	TRY(F(reg_dlist_add_desc, (void *, uintptr_t, size_t, uint64_t, const void *, size_t))(
		regs, base, size, mem == 1 ? (uint64_t)dev : 0, NULL, 0));
	TRY(F(register_mem, (void *, void *, void *))(agent, regs, opts));
	char *got;
	TRY(F(load_remote_md, (void *, const void *, size_t, char **))(agent, raw, decode(blob, raw), &got));
	return puts("ok"), 1;
}

static int build(int op, size_t len, size_t count, size_t stride, void **req)
{
	int (*add)(void *, uintptr_t, size_t, uint64_t) = F(xfer_dlist_add_desc, (void *, uintptr_t, size_t, uint64_t));
	void *a, *b;
	TRY(F(create_xfer_dlist, (int, void **))(mem, &a));
	TRY(F(create_xfer_dlist, (int, void **))(far_mem, &b));
	for (size_t i = 0; i < count; i++) {
		add(a, base + i * stride, len, mem == 1 ? (uint64_t)dev : 0);
		add(b, far_base + i * stride, len, far_mem == 1 ? (uint64_t)far_dev : 0);
	}
	TRY(F(create_xfer_req, (void *, int, void *, void *, const char *, void **, void *))(agent, op, a, b,
											      remote_name, req, opts));
	F(destroy_xfer_dlist, (void *))(a);
	F(destroy_xfer_dlist, (void *))(b);
	return 1;
}

// prepared is the best time of making a request from prepared lists.
static int prepared(int op, size_t len, size_t count, size_t stride, int64_t *best)
{
	int (*add)(void *, uintptr_t, size_t, uint64_t) = F(xfer_dlist_add_desc, (void *, uintptr_t, size_t, uint64_t));
	int (*prep)(void *, const char *, void *, void **, void *) =
		F(prep_xfer_dlist, (void *, const char *, void *, void **, void *));
	int (*drop)(void *, void *) = F(release_xfer_dlist_handle, (void *, void *));
	int *index = malloc(count * sizeof *index);
	void *a, *b, *ha, *hb, *req;
	TRY(F(create_xfer_dlist, (int, void **))(mem, &a));
	TRY(F(create_xfer_dlist, (int, void **))(far_mem, &b));
	for (size_t i = 0; i < count; i++) {
		add(a, base + i * stride, len, mem == 1 ? (uint64_t)dev : 0);
		add(b, far_base + i * stride, len, far_mem == 1 ? (uint64_t)far_dev : 0);
	}
	TRY(prep(agent, "", a, &ha, opts));
	TRY(prep(agent, remote_name, b, &hb, opts));
	*best = INT64_MAX;
	for (int k = 0; k < 5; k++) {
		int64_t t = now(CLOCK_MONOTONIC);
		for (size_t i = 0; i < count; i++)
			index[i] = (int)i;
		TRY(F(make_xfer_req, (void *, int, void *, const int *, size_t, void *, const int *, size_t, void **, void *))(
			agent, op, ha, index, count, hb, index, count, &req, opts));
		t = now(CLOCK_MONOTONIC) - t;
		*best = t < *best ? t : *best;
		F(release_xfer_req, (void *, void *))(agent, req);
		F(destroy_xfer_req, (void *))(req);
	}
	drop(agent, ha);
	drop(agent, hb);
	F(destroy_xfer_dlist, (void *))(a);
	F(destroy_xfer_dlist, (void *))(b);
	free(index);
	return 1;
}

// case OP LEN COUNT STRIDE NSEC
static int measure(char *line)
{
	char op_name[16];
	size_t len, count, stride;
	long long nsec;
	if (sscanf(line, "case %15s %zu %zu %zu %lld", op_name, &len, &count, &stride, &nsec) != 5)
		return puts("error the case makes no sense"), 0;
	int op = strcmp(op_name, "WRITE") == 0;
	int (*post)(void *, void *, void *) = F(post_xfer_req, (void *, void *, void *));
	int (*status)(void *, void *) = F(get_xfer_status, (void *, void *));
	int (*release)(void *, void *) = F(release_xfer_req, (void *, void *));
	int (*destroy)(void *) = F(destroy_xfer_req, (void *));
	void *req;
	int64_t best = 0;
	for (int i = 0; i < 5; i++) {
		int64_t t = now(CLOCK_MONOTONIC);
		if (!build(op, len, count, stride, &req))
			return 0;
		t = now(CLOCK_MONOTONIC) - t;
		best = best == 0 || t < best ? t : best;
		release(agent, req);
		destroy(req);
	}
	int64_t ready;
	if (!prepared(op, len, count, stride, &ready) || !build(op, len, count, stride, &req))
		return 0;
	long iters = 0;
	int64_t cpu = 0, wall = 0, best_cpu = INT64_MAX, best_wall = INT64_MAX;
	for (long round = 0; round == 0 || wall < nsec; round = round == 0 ? 1 : round < 64 ? 2 * round : 64) {
		int64_t c = now(CLOCK_THREAD_CPUTIME_ID), w = now(CLOCK_MONOTONIC);
		for (long i = 0; i < (round == 0 ? 1 : round); i++) {
			int st = post(agent, req, NULL);
			while (st == 1)
				st = status(agent, req);
			TRY(st);
		}
		if (round == 0)
			continue; // warm-up
		c = now(CLOCK_THREAD_CPUTIME_ID) - c;
		w = now(CLOCK_MONOTONIC) - w;
		cpu += c;
		wall += w;
		iters += round;
		best_cpu = 1000 * c / round < best_cpu ? 1000 * c / round : best_cpu;
		best_wall = 1000 * w / round < best_wall ? 1000 * w / round : best_wall;
	}
	printf("result %ld %ld %ld %ld %zu 0 %ld %ld %ld\n", iters, (long)cpu, (long)wall, (long)best, count,
	       (long)best_cpu, (long)best_wall, (long)ready);
	release(agent, req);
	destroy(req);
	return 1;
}

int main(int argc, char **argv)
{
	static char line[2 << 20];
	unsigned long a, b, c, d, e;
	lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (lib == NULL) {
		printf("error %s\n", argc > 1 ? dlerror() : "usage: loop LIBRARY");
		return 1;
	}
	while (fgets(line, sizeof line, stdin) != NULL) {
		if (strncmp(line, "start ", 6) == 0)
			start(line);
		else if (strncmp(line, "case ", 5) == 0)
			measure(line);
		else if (sscanf(line, "fill %lu", &a) == 1)
			fill(a);
		else if (sscanf(line, "check %lu %lu %lu %lu %lu", &a, &b, &c, &d, &e) == 5)
			check(a, b, c, d, e);
		else
			puts("error unknown command");
		fflush(stdout);
	}
	return 0;
}
