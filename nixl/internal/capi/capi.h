// What the Go side calls: one C function for one step of the API, so that a
// step costs one crossing between Go and C whatever number of descriptors,
// messages or parameters it carries. Handles of the library cross as numbers.
#ifndef LMCACHE_GO_NIXL_CAPI_H
#define LMCACHE_GO_NIXL_CAPI_H

#include "table.h"

// nx_cuda is the part of the CUDA driver API that makes a context current.
enum { NX_CUDA_DEVICES = 64 };
struct nx_cuda {
	int (*get_current)(void **context);
	int (*device_get)(int *device, int ordinal);
	int (*primary_retain)(void **context, int device);
	int (*push)(void *context);
	int (*pop)(void **context);
	void *primary[NX_CUDA_DEVICES];
};

// nx holds one loaded library: the table, and what is not part of the C API.
struct nx {
#define NX_FIELD(need, result, name, params) result(*name) params;
	NX_FUNCTIONS(NX_FIELD)
#undef NX_FIELD

	// nixlAgent::getXferStatus of the C++ library, called with the objects
	// behind an agent and a request: it answers the status that the C API
	// folds into one. Optional.
	int (*exact_status)(void *agent, void *req);

	int layout; // of struct nx_config: NX_LAYOUT_*

	// From the CUDA driver, once memory of a GPU is used: see cuda.c. Optional.
	struct nx_cuda cuda;
};

enum { NX_REQUIRED, NX_OPTIONAL, NX_SINCE_VERSION };
enum {
	NX_LAYOUT_1_5 = 0,  // libraries without a version function
	NX_LAYOUT_0_1 = 1,  // C API 0.1: the port is 16 bits wide and moved the fields behind it
};

int nx_symbol_count(void);
const char *nx_symbol_name(int i);
int nx_symbol_need(int i);
void nx_symbol_set(struct nx *l, int i, void *address);
int nx_symbol_present(const struct nx *l, int i);
void nx_set_exact_status(struct nx *l, void *address);
// nx_version asks for the version; it returns 0 when the library has none.
int nx_version(const struct nx *l, int *major, int *minor, int *patch);
int nx_is_stub(const struct nx *l);

// nx_cuda_set hands over cuCtxGetCurrent, cuDeviceGet,
// cuDevicePrimaryCtxRetain, cuCtxPushCurrent and cuCtxPopCurrent.
void nx_cuda_set(struct nx *l, void *get_current, void *device_get, void *primary_retain, void *push, void *pop);
// nx_cuda_retain makes the primary context of a device ready for nx_cuda_enter;
// the result is the driver's.
int nx_cuda_retain(struct nx *l, int ordinal);

// nx_err is the answer of a call that failed.
struct nx_err {
	int32_t status; // as in NIXL 1.5.1's C API
	int32_t native; // of the C++ library, 0 when unknown
	char text[240]; // what the library said, or ""
};

// nx_bytes is memory of the C heap that the caller frees with nx_free.
struct nx_bytes {
	void *data;
	size_t len;
};
void nx_free(struct nx_bytes *b);

struct nx_desc {
	uint64_t addr, len, dev;
};
_Static_assert(sizeof(struct nx_desc) == 24, "layout of Desc in Go");

// nx_stride is a row of equal blocks: count blocks of len bytes, stride apart.
struct nx_stride {
	uint64_t addr, len, dev, stride, count;
};
_Static_assert(sizeof(struct nx_stride) == 40, "layout of Stride in Go");

// nx_range is one registered region, [start, end). Arrays of ranges are sorted
// by (dev, start) and do not overlap.
struct nx_range {
	uint64_t dev, start, end;
};
_Static_assert(sizeof(struct nx_range) == 24, "layout of Range in Go");

struct nx_agent_config {
	int32_t progress, listen, sync, telemetry;
	uint32_t port, pad;
	uint64_t progress_delay_usec, listen_delay_usec;
};

// Agent.
uintptr_t nx_agent_create(const struct nx *l, const char *name, const struct nx_agent_config *c, struct nx_err *e);
int nx_agent_destroy(const struct nx *l, uintptr_t agent, struct nx_err *e);
int nx_connect(const struct nx *l, uintptr_t agent, const char *remote, uintptr_t backend, struct nx_err *e);

// Plugins and backends. Names come back as NUL-terminated strings one after
// another, parameters as key, value, key, value; memory types as a bit set.
int nx_plugins(const struct nx *l, uintptr_t agent, struct nx_bytes *names, struct nx_err *e);
int nx_plugin_info(const struct nx *l, uintptr_t agent, const char *plugin, uint32_t *mems, struct nx_bytes *params,
		   struct nx_err *e);
// nx_backend_create takes parameters in the same form, params_len bytes.
uintptr_t nx_backend_create(const struct nx *l, uintptr_t agent, const char *plugin, const char *params,
			    size_t params_len, int cuda_device, struct nx_err *e);
int nx_backend_info(const struct nx *l, uintptr_t agent, uintptr_t backend, uint32_t *mems, struct nx_bytes *params,
		    struct nx_err *e);
void nx_backend_destroy(const struct nx *l, uintptr_t backend);

// Memory. metas holds the metadata of all descriptors one after another and
// meta_lens their lengths; both may be NULL.
int nx_register(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
		const char *metas, const size_t *meta_lens, struct nx_err *e);
int nx_deregister(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
		  const char *metas, const size_t *meta_lens, struct nx_err *e);
// nx_query answers for each descriptor a byte 0 (absent) or 1, after a 1 a
// 32-bit count of parameters, then these.
int nx_query(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
	     const char *metas, const size_t *meta_lens, struct nx_bytes *answers, struct nx_err *e);

// Metadata.
int nx_local_md(const struct nx *l, uintptr_t agent, struct nx_bytes *blob, struct nx_err *e);
int nx_partial_md(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
		  const char *metas, const size_t *meta_lens, struct nx_bytes *blob, struct nx_err *e);
int nx_load_md(const struct nx *l, uintptr_t agent, const void *blob, size_t len, struct nx_bytes *name,
	       struct nx_err *e);
int nx_invalidate(const struct nx *l, uintptr_t agent, const char *remote, struct nx_err *e);
// nx_check_md answers 1 when the remote is known and covers the descriptors.
int nx_check_md(const struct nx *l, uintptr_t agent, const char *remote, int mem, const struct nx_desc *d, size_t n,
		struct nx_err *e);
// ip may be NULL: then the exchange goes through the metadata server.
int nx_send_md(const struct nx *l, uintptr_t agent, const char *ip, uint16_t port, struct nx_err *e);
int nx_send_partial_md(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d,
		       size_t n, const char *metas, const size_t *meta_lens, const char *ip, uint16_t port,
		       struct nx_err *e);
int nx_fetch_md(const struct nx *l, uintptr_t agent, const char *remote, const char *ip, uint16_t port,
		struct nx_err *e);
int nx_withdraw_md(const struct nx *l, uintptr_t agent, const char *ip, uint16_t port, struct nx_err *e);

// Descriptor lists.
//
// nx_cover looks for the range of each descriptor. It returns the number of
// descriptors that lie in one (n when all do), which is the index of the first
// that does not, sets used[i] for each range met and adds up the bytes.
size_t nx_cover(const struct nx_desc *d, size_t n, const struct nx_range *r, size_t ranges, uint8_t *used,
		uint64_t *bytes);
size_t nx_expand(const struct nx_stride *s, size_t n, struct nx_desc *out, size_t cap);
// nx_pairs_equal returns the index of the first pair of unequal lengths, or n.
size_t nx_pairs_equal(const struct nx_desc *a, const struct nx_desc *b, size_t n);
// nx_merge joins neighbours: pairs that continue each other on both sides and
// lie in the same ranges become one. With sort the pairs are put in the order
// of the first list before. Without ranges a side counts as one range. out_a
// and out_b hold n; it returns how many pairs remain, or 0 when memory ran out.
size_t nx_merge(const struct nx_desc *a, const struct nx_desc *b, size_t n, const struct nx_range *ra, size_t na,
		const struct nx_range *rb, size_t nb, int sort, struct nx_desc *out_a, struct nx_desc *out_b);
// nx_sort_index writes the index pairs in the order of the first index to
// out_a and out_b. It returns 1 when they were out of order, 0 when nothing
// had to be done and nothing was written, -1 when memory ran out.
int nx_sort_index(const int32_t *a, const int32_t *b, size_t n, int32_t *out_a, int32_t *out_b);
// nx_index_bounds returns the index of the first entry outside [0, limit), or n.
size_t nx_index_bounds(const int32_t *idx, size_t n, int32_t limit);

uintptr_t nx_prep(const struct nx *l, uintptr_t agent, const char *remote, uintptr_t backend, int mem,
		  const struct nx_desc *d, size_t n, struct nx_err *e);
int nx_prep_release(const struct nx *l, uintptr_t agent, uintptr_t handle);

// Transfers.
enum {
	NX_HAS_NOTIF = 1,  // notif is sent when the data has arrived, even when it is empty
	NX_SKIP_MERGE = 2, // neighbours stay apart
	NX_SORT = 4,       // pairs are put in order first, so that more of them are neighbours
};
struct nx_xfer_opt {
	uintptr_t backend;
	const void *notif;
	size_t notif_len;
	const void *custom;
	size_t custom_len;
	int32_t flags;
	int32_t cuda_device; // whose context must be current, -1: none
};
uintptr_t nx_make(const struct nx *l, uintptr_t agent, int op, uintptr_t local, const int32_t *li, uintptr_t remote,
		  const int32_t *ri, size_t n, const struct nx_xfer_opt *o, struct nx_err *e);
// nx_side is one side of a transfer that is made from descriptors.
struct nx_side {
	const struct nx_desc *descs;
	const struct nx_range *ranges; // where neighbours may not be joined across
	size_t range_count;
	// An empty list of the library's to fill, or 0; on return one to fill the
	// next time, or 0. A list that has grown once need not grow again.
	uintptr_t spare;
	int32_t mem;
	int32_t pad;
};
void nx_spare_destroy(const struct nx *l, uintptr_t spare);
// nx_create makes a transfer of n pairs; *made tells how many were left after
// joining.
uintptr_t nx_create(const struct nx *l, uintptr_t agent, int op, struct nx_side *local, struct nx_side *remote,
		    size_t n, const char *name, const struct nx_xfer_opt *o, size_t *made,
		    struct nx_err *e);
// The next five take the struct nx as a number, which spares Go a check of
// the pointer. They answer a status in the low and the C++ status in the
// high half.
int64_t nx_post(uintptr_t lib, uintptr_t agent, uintptr_t req, int cuda_device);
int64_t nx_post_notif(uintptr_t lib, uintptr_t agent, uintptr_t req, const void *notif, size_t len, int has,
		      int cuda_device);
int64_t nx_status(uintptr_t lib, uintptr_t agent, uintptr_t req);
// nx_wait polls until the request ends or spin_nsec have passed.
int64_t nx_wait(uintptr_t lib, uintptr_t agent, uintptr_t req, int64_t spin_nsec);
void nx_status_many(uintptr_t lib, uintptr_t agent, const uintptr_t *reqs, size_t n, int64_t *out);
int nx_req_release(const struct nx *l, uintptr_t agent, uintptr_t req, struct nx_err *e);
struct nx_telemetry {
	uint64_t start_usec, post_usec, xfer_usec, bytes, descs;
};
int nx_telemetry_get(const struct nx *l, uintptr_t agent, uintptr_t req, struct nx_telemetry *t, struct nx_err *e);
int nx_estimate(const struct nx *l, uintptr_t agent, uintptr_t req, int64_t *usec, int64_t *margin_usec,
		struct nx_err *e);

// Notifications. nx_drain answers, for each message, a 32-bit length of the
// sender's name, a 64-bit length of the message, the name and the message.
int nx_drain(const struct nx *l, uintptr_t agent, struct nx_bytes *out, size_t *count, struct nx_err *e);
int nx_notify(const struct nx *l, uintptr_t agent, const char *remote, const void *msg, size_t len, uintptr_t backend,
	      struct nx_err *e);

// Views.
uintptr_t nx_view_local(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d,
			size_t n, struct nx_err *e);
uintptr_t nx_view_remote(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d,
			 size_t n, const char *names, const uint32_t *name_offsets, struct nx_err *e);
int nx_view_release(const struct nx *l, uintptr_t agent, uintptr_t view, struct nx_err *e);

// nx_look does nothing. Go's own check of the arguments of a C call is what its
// caller is after: see IsGoMemory.
void nx_look(const void *word);

// nx_thread_cpu_nsec is the CPU time of the calling thread.
int64_t nx_thread_cpu_nsec(void);

#endif
