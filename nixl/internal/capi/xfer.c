// Transfers and notifications.
#define _GNU_SOURCE
#include "inner.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

// result packs a status and, when it is the catch-all BACKEND, the C++
// library's own code. Agent and request handles of the C API hold a pointer to
// the C++ object as their first field; the C++ function only reads what the
// failed call has stored.
static int64_t result(const struct nx *l, uintptr_t agent, uintptr_t req, int status)
{
	int native = 0;
	if (status >= 0)
		return status;
	nx_plain(l, &status, &native);
	if (status == NX_ERR_BACKEND && native == 0 && l->exact_status != NULL) {
		void **a = NX_P(agent), **r = NX_P(req);
		if (*a != NULL && *r != NULL)
			native = l->exact_status(*a, *r);
		if (native >= 0)
			native = 0; // the request itself is well: the call was refused
	}
	return (int64_t)(((uint64_t)(uint32_t)native << 32) | (uint32_t)status);
}

static int xfer_opt(const struct nx *l, const struct nx_xfer_opt *o, void **opt)
{
	int status = nx_opt(l, o->backend, opt);
	if (status != NX_SUCCESS)
		return status;
	if (o->flags & NX_HAS_NOTIF) {
		status = l->opt_args_set_notif_msg(*opt, o->notif_len > 0 ? o->notif : "", o->notif_len);
		if (status == NX_SUCCESS)
			status = l->opt_args_set_has_notif(*opt, true);
	}
	if (status == NX_SUCCESS && (o->flags & NX_SKIP_MERGE))
		status = l->opt_args_set_skip_desc_merge(*opt, true);
	if (status == NX_SUCCESS && o->custom_len > 0)
		status = l->opt_args_set_custom_param(*opt, o->custom, o->custom_len);
	if (status != NX_SUCCESS)
		l->destroy_opt_args(*opt);
	return status;
}

uintptr_t nx_make(const struct nx *l, uintptr_t agent, int op, uintptr_t local, const int32_t *li, uintptr_t remote,
		  const int32_t *ri, size_t n, const struct nx_xfer_opt *o, struct nx_err *e)
{
	void *req = NULL, *opt = NULL;
	int32_t *sorted = NULL;
	int status = xfer_opt(l, o, &opt);
	if (status != NX_SUCCESS) {
		nx_fail(l, e, status, 0);
		return 0;
	}
	if ((o->flags & NX_SORT) && n > 1) {
		sorted = malloc(2 * n * sizeof *sorted);
		if (sorted != NULL && nx_sort_index(li, ri, n, sorted, sorted + n) == 1) {
			li = sorted;
			ri = sorted + n;
		}
	}
	int entered = nx_cuda_enter(l, o->cuda_device);
	status = nx_check(l, e,
			  l->make_xfer_req(NX_P(agent), op, NX_P(local), li, n, NX_P(remote), ri, n, &req, opt));
	nx_cuda_leave(l, entered);
	free(sorted);
	l->destroy_opt_args(opt);
	return status == NX_SUCCESS ? (uintptr_t)req : 0;
}

// lists are the two lists of a transfer while they are filled.
struct lists {
	const struct nx *l;
	void *a, *b;
};

static int into_lists(void *to, const struct nx_desc *a, const struct nx_desc *b)
{
	struct lists *x = to;
	int status = x->l->xfer_dlist_add_desc(x->a, a->addr, a->len, a->dev);
	return status != NX_SUCCESS ? status : x->l->xfer_dlist_add_desc(x->b, b->addr, b->len, b->dev);
}

// fill_lists puts the pairs into the library's lists.
static int fill_lists(struct lists *x, const struct nx_side *local, const struct nx_side *remote, size_t n, int flags,
		      size_t *made)
{
	int join = !(flags & NX_SKIP_MERGE);
	return nx_merge_each(local->descs, remote->descs, n, local->ranges, local->range_count, remote->ranges,
			     remote->range_count, flags & NX_SORT, join, into_lists, x, made);
}

// Lists up to this length are kept for the next transfer: 24 bytes each.
enum { KEEP_MAX = 1 << 15 };

// borrow takes the spare list of a side or makes one.
static int borrow(const struct nx *l, struct nx_side *s, void **list)
{
	*list = NX_P(s->spare);
	s->spare = 0;
	return *list != NULL ? NX_SUCCESS : l->create_xfer_dlist(s->mem, list);
}

// give_back empties a list for the next time, or destroys it.
static void give_back(const struct nx *l, struct nx_side *s, void *list, size_t n)
{
	if (n <= KEEP_MAX && l->xfer_dlist_clear != NULL && l->xfer_dlist_clear(list) == NX_SUCCESS)
		s->spare = (uintptr_t)list;
	else
		l->destroy_xfer_dlist(list);
}

void nx_spare_destroy(const struct nx *l, uintptr_t spare)
{
	if (spare != 0)
		l->destroy_xfer_dlist(NX_P(spare));
}

uintptr_t nx_create(const struct nx *l, uintptr_t agent, int op, struct nx_side *local, struct nx_side *remote,
		    size_t n, const char *name, const struct nx_xfer_opt *o, size_t *made, struct nx_err *e)
{
	void *req = NULL, *opt = NULL;
	struct lists x = {.l = l};
	*made = 0;
	int status = borrow(l, local, &x.a);
	if (status == NX_SUCCESS) {
		status = borrow(l, remote, &x.b);
		if (status == NX_SUCCESS) {
			status = fill_lists(&x, local, remote, n, o->flags, made);
			if (status == NX_SUCCESS)
				status = xfer_opt(l, o, &opt);
			if (status == NX_SUCCESS) {
				int entered = nx_cuda_enter(l, o->cuda_device);
				status = l->create_xfer_req(NX_P(agent), op, x.a, x.b, name, &req, opt);
				nx_cuda_leave(l, entered);
				l->destroy_opt_args(opt);
			}
			give_back(l, remote, x.b, n);
		}
		give_back(l, local, x.a, n);
	}
	return nx_check(l, e, status) == NX_SUCCESS ? (uintptr_t)req : 0;
}

int64_t nx_post(uintptr_t lib, uintptr_t agent, uintptr_t req, int cuda_device)
{
	const struct nx *l = NX_P(lib);
	int entered = nx_cuda_enter(l, cuda_device);
	int64_t r = result(l, agent, req, l->post_xfer_req(NX_P(agent), NX_P(req), NULL));
	nx_cuda_leave(l, entered);
	return r;
}

int64_t nx_post_notif(uintptr_t lib, uintptr_t agent, uintptr_t req, const void *notif, size_t len, int has,
		      int cuda_device)
{
	const struct nx *l = NX_P(lib);
	struct nx_xfer_opt o = {.notif = notif, .notif_len = len, .flags = has ? NX_HAS_NOTIF : 0};
	void *opt = NULL;
	int status = xfer_opt(l, &o, &opt);
	if (status == NX_SUCCESS) {
		int entered = nx_cuda_enter(l, cuda_device);
		status = l->post_xfer_req(NX_P(agent), NX_P(req), opt);
		nx_cuda_leave(l, entered);
		l->destroy_opt_args(opt);
	}
	return result(l, agent, req, status);
}

int64_t nx_status(uintptr_t lib, uintptr_t agent, uintptr_t req)
{
	const struct nx *l = NX_P(lib);
	return result(l, agent, req, l->get_xfer_status(NX_P(agent), NX_P(req)));
}

static int64_t now_nsec(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

int64_t nx_wait(uintptr_t lib, uintptr_t agent, uintptr_t req, int64_t spin_nsec)
{
	const struct nx *l = NX_P(lib);
	int64_t end = now_nsec() + spin_nsec;
	for (;;) {
		for (int i = 0; i < 8; i++) {
			int status = l->get_xfer_status(NX_P(agent), NX_P(req));
			if (status != NX_IN_PROG)
				return result(l, agent, req, status);
			pause_cpu();
		}
		if (now_nsec() >= end)
			return NX_IN_PROG;
	}
}

void nx_status_many(uintptr_t lib, uintptr_t agent, const uintptr_t *reqs, size_t n, int64_t *out)
{
	for (size_t i = 0; i < n; i++)
		out[i] = nx_status(lib, agent, reqs[i]);
}

int nx_req_release(const struct nx *l, uintptr_t agent, uintptr_t req, struct nx_err *e)
{
	int status = nx_check(l, e, l->release_xfer_req(NX_P(agent), NX_P(req)));
	if (status != NX_SUCCESS)
		return status;
	return nx_check(l, e, l->destroy_xfer_req(NX_P(req)));
}

int nx_telemetry_get(const struct nx *l, uintptr_t agent, uintptr_t req, struct nx_telemetry *t, struct nx_err *e)
{
	memset(t, 0, sizeof *t);
	return nx_check(l, e, l->get_xfer_telemetry(NX_P(agent), NX_P(req), t));
}
_Static_assert(sizeof(struct nx_telemetry) == 40, "size in 1.5.1");

int nx_estimate(const struct nx *l, uintptr_t agent, uintptr_t req, int64_t *usec, int64_t *margin_usec,
		struct nx_err *e)
{
	int method = 0;
	*usec = *margin_usec = 0;
	return nx_check(l, e, l->estimate_xfer_cost(NX_P(agent), NX_P(req), NULL, usec, margin_usec, &method));
}

// put_notifs writes the messages of one sender.
static int put_notifs(const struct nx *l, void *map, const char *agent, struct nx_buf *b, size_t *count)
{
	size_t n = 0;
	uint32_t name_len = (uint32_t)strlen(agent);
	int status = l->notif_map_get_notifs_size(map, agent, &n);
	for (size_t i = 0; i < n && status == NX_SUCCESS; i++) {
		const void *msg = NULL;
		size_t len = 0;
		status = l->notif_map_get_notif(map, agent, i, &msg, &len);
		if (status != NX_SUCCESS)
			break;
		uint64_t len64 = len;
		nx_put(b, &name_len, sizeof name_len);
		nx_put(b, &len64, sizeof len64);
		nx_put(b, agent, name_len);
		nx_put(b, msg, len);
		++*count;
	}
	return status;
}

int nx_drain(const struct nx *l, uintptr_t agent, struct nx_bytes *out, size_t *count, struct nx_err *e)
{
	void *map = NULL;
	size_t agents = 0;
	struct nx_buf b = {0};
	*count = 0;
	int status = l->create_notif_map(&map);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = l->get_notifs(NX_P(agent), map, NULL);
	if (status == NX_SUCCESS)
		status = l->notif_map_size(map, &agents);
	for (size_t i = 0; i < agents && status == NX_SUCCESS; i++) {
		const char *name = NULL;
		status = l->notif_map_get_agent_at(map, i, &name);
		if (status == NX_SUCCESS && name != NULL)
			status = put_notifs(l, map, name, &b, count);
	}
	l->destroy_notif_map(map);
	if (nx_take(&b, out) != NX_SUCCESS)
		status = NX_ERR_NO_MEMORY;
	return nx_check(l, e, status);
}

int nx_notify(const struct nx *l, uintptr_t agent, const char *remote, const void *msg, size_t len, uintptr_t backend,
	      struct nx_err *e)
{
	void *opt = NULL;
	int status = nx_opt(l, backend, &opt);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_check(l, e, l->gen_notif(NX_P(agent), remote, len > 0 ? msg : "", len, opt));
	l->destroy_opt_args(opt);
	return status;
}
