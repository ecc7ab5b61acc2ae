// Shared by the C files of this package only.
#ifndef LMCACHE_GO_NIXL_INNER_H
#define LMCACHE_GO_NIXL_INNER_H

#include "capi.h"

enum {
	NX_SUCCESS = 0,
	NX_IN_PROG = 1,
	NX_ERR_INVALID_PARAM = -1,
	NX_ERR_BACKEND = -2,
	NX_ERR_NO_MEMORY = -100, // ours: malloc failed
	NX_ERR_UNEQUAL = -101,   // ours: a pair of descriptors of unequal lengths
	NX_ERR_UNCOVERED = -102, // ours: a descriptor outside the ranges
};

// nx_fail fills e (which may be NULL) and returns its status.
int nx_fail(const struct nx *l, struct nx_err *e, int status, int native);
// nx_check returns 0 or 1 as they are and hands anything else to nx_fail.
int nx_check(const struct nx *l, struct nx_err *e, int status);
// nx_plain turns a status of any version of the library into that of 1.5.1
// and the C++ code, where the status tells it.
void nx_plain(const struct nx *l, int *status, int *native);

// nx_buf grows. After a failed malloc everything put in is dropped.
struct nx_buf {
	char *data;
	size_t len, cap;
	int failed;
};
void nx_put(struct nx_buf *b, const void *data, size_t len);
// nx_take hands the content over; it returns NX_ERR_NO_MEMORY after a failure.
int nx_take(struct nx_buf *b, struct nx_bytes *out);

// nx_blob copies what the library returned and frees its copy.
int nx_blob(const struct nx *l, void *data, size_t len, struct nx_bytes *out);

int nx_mem_bits(const struct nx *l, void *mems, uint32_t *bits);
int nx_put_params(const struct nx *l, void *params, struct nx_buf *b, uint32_t *count);

// nx_opt makes optional arguments with a backend in it (0: none).
int nx_opt(const struct nx *l, uintptr_t backend, void **opt);
// nx_reserve makes a list grow once instead of again and again.
void nx_reserve(const struct nx *l, void *list, size_t n);
int nx_xfer_list(const struct nx *l, int mem, const struct nx_desc *d, size_t n, void **list);
int nx_reg_list(const struct nx *l, int mem, const struct nx_desc *d, size_t n, const char *metas,
		const size_t *meta_lens, void **list);

// nx_merge_each is nx_merge that hands each pair to emit instead of keeping it,
// and without join leaves pairs apart; a status of emit other than 0 ends it, as
// does a pair of unequal lengths or outside the ranges.
int nx_merge_each(const struct nx_desc *a, const struct nx_desc *b, size_t n, const struct nx_range *ra, size_t na,
		  const struct nx_range *rb, size_t nb, int sort, int join,
		  int (*emit)(void *to, const struct nx_desc *a, const struct nx_desc *b), void *to, size_t *made);

// nx_cuda_enter makes the primary context of the device current when the
// thread has none, and returns whether nx_cuda_leave must undo it. Without a
// device (-1) neither calls anything.
int nx_cuda_push(const struct nx *l, int ordinal);
void nx_cuda_pop(const struct nx *l);
static inline int nx_cuda_enter(const struct nx *l, int ordinal)
{
	return ordinal >= 0 ? nx_cuda_push(l, ordinal) : 0;
}
static inline void nx_cuda_leave(const struct nx *l, int entered)
{
	if (entered)
		nx_cuda_pop(l);
}

#define NX_P(handle) ((void *)(uintptr_t)(handle))

#endif
