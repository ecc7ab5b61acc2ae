// Descriptor lists: checks, joining of neighbours, the library's own lists.
#include "inner.h"

#include <stdlib.h>
#include <string.h>

// find returns the range that holds [d->addr, d->addr+d->len), or ranges. hint
// is where the last one was found: lists mostly stay in one region.
static size_t find(const struct nx_desc *d, const struct nx_range *r, size_t ranges, size_t hint)
{
#define HOLDS(x) ((x).dev == d->dev && d->addr >= (x).start && d->addr <= (x).end && d->len <= (x).end - d->addr)
	if (hint < ranges && HOLDS(r[hint]))
		return hint;
	size_t low = 0, high = ranges; // first range behind the address
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		if (r[mid].dev < d->dev || (r[mid].dev == d->dev && r[mid].start <= d->addr))
			low = mid + 1;
		else
			high = mid;
	}
	if (low > 0 && HOLDS(r[low - 1]))
		return low - 1;
	// An empty descriptor at the end of a region belongs to it, wherever the
	// next region starts.
	if (low > 1 && HOLDS(r[low - 2]))
		return low - 2;
	return ranges;
#undef HOLDS
}

size_t nx_cover(const struct nx_desc *d, size_t n, const struct nx_range *r, size_t ranges, uint8_t *used,
		uint64_t *bytes)
{
	size_t at = 0;
	uint64_t sum = 0;
	for (size_t i = 0; i < n; i++) {
		at = find(&d[i], r, ranges, at);
		if (at == ranges)
			return i;
		used[at] = 1;
		sum += d[i].len;
	}
	*bytes = sum;
	return n;
}

size_t nx_expand(const struct nx_stride *s, size_t n, struct nx_desc *out, size_t cap)
{
	size_t made = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t addr = s[i].addr;
		for (uint64_t k = 0; k < s[i].count; k++, addr += s[i].stride) {
			if (made == cap)
				return made;
			out[made++] = (struct nx_desc){addr, s[i].len, s[i].dev};
		}
	}
	return made;
}

size_t nx_pairs_equal(const struct nx_desc *a, const struct nx_desc *b, size_t n)
{
	size_t i = 0;
	while (i < n && a[i].len == b[i].len)
		i++;
	return i;
}

size_t nx_index_bounds(const int32_t *idx, size_t n, int32_t limit)
{
	size_t i = 0;
	while (i < n && idx[i] >= 0 && idx[i] < limit)
		i++;
	return i;
}

// keyed is an entry of a radix sort; digits that all entries share cost a
// look and no pass.
struct keyed {
	uint64_t key;
	uint32_t at;
};

static struct keyed *radix(struct keyed *from, struct keyed *to, size_t n)
{
	static const int digits = sizeof(uint64_t);
	size_t count[8][256];
	memset(count, 0, sizeof count);
	for (size_t i = 0; i < n; i++)
		for (int d = 0; d < digits; d++)
			count[d][(from[i].key >> (8 * d)) & 255]++;
	for (int d = 0; d < digits; d++) {
		if (count[d][(from[0].key >> (8 * d)) & 255] == n)
			continue;
		size_t sum = 0;
		for (int v = 0; v < 256; v++) {
			size_t c = count[d][v];
			count[d][v] = sum;
			sum += c;
		}
		for (size_t i = 0; i < n; i++)
			to[count[d][(from[i].key >> (8 * d)) & 255]++] = from[i];
		struct keyed *swap = from;
		from = to;
		to = swap;
	}
	return from;
}

// by_address returns the order of a by (dev, addr), or NULL when it is in
// order or cannot be sorted; then *failed tells which.
static uint32_t *by_address(const struct nx_desc *a, size_t n, int *failed)
{
	size_t i = 1;
	*failed = 0;
	while (i < n && (a[i - 1].dev < a[i].dev || (a[i - 1].dev == a[i].dev && a[i - 1].addr <= a[i].addr)))
		i++;
	if (i >= n || n > UINT32_MAX)
		return NULL;
	struct keyed *work = malloc(2 * n * sizeof *work);
	uint32_t *order = malloc(n * sizeof *order);
	*failed = work == NULL || order == NULL;
	if (*failed) {
		free(work);
		free(order);
		return NULL;
	}
	struct keyed *from = work, *to = work + n;
	for (i = 0; i < n; i++)
		from[i] = (struct keyed){a[i].addr, (uint32_t)i};
	struct keyed *sorted = radix(from, to, n);
	to = sorted == from ? to : from;
	for (i = 0; i < n; i++)
		sorted[i].key = a[sorted[i].at].dev;
	sorted = radix(sorted, to, n); // stable: address order stays within a device
	for (i = 0; i < n; i++)
		order[i] = sorted[i].at;
	free(work);
	return order;
}

static int follows(const struct nx_desc *d, const struct nx_desc *next)
{
	return d->dev == next->dev && d->addr + d->len == next->addr;
}

int nx_merge_each(const struct nx_desc *a, const struct nx_desc *b, size_t n, const struct nx_range *ra, size_t na,
		  const struct nx_range *rb, size_t nb, int sort, int join,
		  int (*emit)(void *to, const struct nx_desc *a, const struct nx_desc *b), void *to, size_t *made)
{
	size_t at_a = 0, at_b = 0, last_a = 0, last_b = 0;
	int failed = 0, status = NX_SUCCESS;
	*made = 0;
	if (n == 0)
		return status;
	uint32_t *order = sort ? by_address(a, n, &failed) : NULL;
	if (failed)
		return NX_ERR_NO_MEMORY;
	struct nx_desc pa = {0}, pb = {0};
	for (size_t k = 0; k < n && status == NX_SUCCESS; k++) {
		size_t i = order != NULL ? order[k] : k;
		const struct nx_desc *da = &a[i], *db = &b[i];
		if (da->len != db->len) {
			status = NX_ERR_UNEQUAL;
			break;
		}
		if (na > 0)
			at_a = find(da, ra, na, at_a);
		if (nb > 0)
			at_b = find(db, rb, nb, at_b);
		if ((na > 0 && at_a == na) || (nb > 0 && at_b == nb)) {
			status = NX_ERR_UNCOVERED;
			break;
		}
		if (join && k > 0 && at_a == last_a && at_b == last_b && follows(&pa, da) && follows(&pb, db)) {
			pa.len += da->len;
			pb.len += db->len;
		} else {
			if (k > 0) {
				status = emit(to, &pa, &pb);
				++*made;
			}
			pa = *da;
			pb = *db;
		}
		last_a = at_a;
		last_b = at_b;
	}
	if (status == NX_SUCCESS) {
		status = emit(to, &pa, &pb);
		++*made;
	}
	free(order);
	return status;
}

struct arrays {
	struct nx_desc *a, *b;
};

static int into_arrays(void *to, const struct nx_desc *a, const struct nx_desc *b)
{
	struct arrays *out = to;
	*out->a++ = *a;
	*out->b++ = *b;
	return NX_SUCCESS;
}

size_t nx_merge(const struct nx_desc *a, const struct nx_desc *b, size_t n, const struct nx_range *ra, size_t na,
		const struct nx_range *rb, size_t nb, int sort, struct nx_desc *out_a, struct nx_desc *out_b)
{
	struct arrays out = {out_a, out_b};
	size_t made = 0;
	return nx_merge_each(a, b, n, ra, na, rb, nb, sort, 1, into_arrays, &out, &made) == NX_SUCCESS ? made : 0;
}

int nx_sort_index(const int32_t *a, const int32_t *b, size_t n, int32_t *out_a, int32_t *out_b)
{
	size_t i = 1;
	while (i < n && a[i - 1] <= a[i])
		i++;
	if (i >= n || n > UINT32_MAX)
		return 0;
	struct keyed *work = malloc(2 * n * sizeof *work);
	if (work == NULL)
		return -1;
	for (i = 0; i < n; i++)
		work[i] = (struct keyed){(uint32_t)a[i], (uint32_t)i};
	struct keyed *sorted = radix(work, work + n, n);
	for (i = 0; i < n; i++) {
		out_a[i] = a[sorted[i].at];
		out_b[i] = b[sorted[i].at];
	}
	free(work);
	return 1;
}

void nx_reserve(const struct nx *l, void *list, size_t n)
{
	if (n > 16 && l->xfer_dlist_resize != NULL && l->xfer_dlist_clear != NULL &&
	    l->xfer_dlist_resize(list, n) == NX_SUCCESS)
		(void)l->xfer_dlist_clear(list);
}

int nx_xfer_list(const struct nx *l, int mem, const struct nx_desc *d, size_t n, void **list)
{
	int status = l->create_xfer_dlist(mem, list);
	if (status != NX_SUCCESS)
		return status;
	nx_reserve(l, *list, n);
	for (size_t i = 0; i < n && status == NX_SUCCESS; i++)
		status = l->xfer_dlist_add_desc(*list, d[i].addr, d[i].len, d[i].dev);
	if (status != NX_SUCCESS)
		l->destroy_xfer_dlist(*list);
	return status;
}

uintptr_t nx_prep(const struct nx *l, uintptr_t agent, const char *remote, uintptr_t backend, int mem,
		  const struct nx_desc *d, size_t n, struct nx_err *e)
{
	void *list = NULL, *opt = NULL, *handle = NULL;
	int status = nx_xfer_list(l, mem, d, n, &list);
	if (status != NX_SUCCESS) {
		nx_fail(l, e, status, 0);
		return 0;
	}
	status = nx_opt(l, backend, &opt);
	if (status == NX_SUCCESS) {
		status = nx_check(l, e, l->prep_xfer_dlist(NX_P(agent), remote, list, &handle, opt));
		l->destroy_opt_args(opt);
	} else {
		nx_fail(l, e, status, 0);
	}
	l->destroy_xfer_dlist(list);
	return status == NX_SUCCESS ? (uintptr_t)handle : 0;
}

int nx_prep_release(const struct nx *l, uintptr_t agent, uintptr_t handle)
{
	return l->release_xfer_dlist_handle(NX_P(agent), NX_P(handle));
}

uintptr_t nx_view_local(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d,
			size_t n, struct nx_err *e)
{
	void *list = NULL, *opt = NULL, *view = NULL;
	int status = nx_xfer_list(l, mem, d, n, &list);
	if (status != NX_SUCCESS) {
		nx_fail(l, e, status, 0);
		return 0;
	}
	status = nx_opt(l, backend, &opt);
	if (status == NX_SUCCESS) {
		int entered = nx_cuda_enter(l, n > 0 ? (int)d[0].dev : -1);
		status = nx_check(l, e, l->prep_mem_view_local(NX_P(agent), list, &view, opt));
		nx_cuda_leave(l, entered);
		l->destroy_opt_args(opt);
	} else {
		nx_fail(l, e, status, 0);
	}
	l->destroy_xfer_dlist(list);
	return status == NX_SUCCESS ? (uintptr_t)view : 0;
}

uintptr_t nx_view_remote(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d,
			 size_t n, const char *names, const uint32_t *name_offsets, struct nx_err *e)
{
	void *list = NULL, *opt = NULL, *view = NULL;
	int status = l->create_remote_dlist(mem, &list);
	if (status != NX_SUCCESS) {
		nx_fail(l, e, status, 0);
		return 0;
	}
	for (size_t i = 0; i < n && status == NX_SUCCESS; i++)
		status = l->remote_dlist_add_desc(list, d[i].addr, d[i].len, d[i].dev, names + name_offsets[i]);
	if (status == NX_SUCCESS)
		status = nx_opt(l, backend, &opt);
	if (status == NX_SUCCESS) {
		status = nx_check(l, e, l->prep_mem_view_remote(NX_P(agent), list, &view, opt));
		l->destroy_opt_args(opt);
	} else {
		nx_fail(l, e, status, 0);
	}
	l->destroy_remote_dlist(list);
	return status == NX_SUCCESS ? (uintptr_t)view : 0;
}

int nx_view_release(const struct nx *l, uintptr_t agent, uintptr_t view, struct nx_err *e)
{
	return nx_check(l, e, l->release_mem_view(NX_P(agent), NX_P(view)));
}
