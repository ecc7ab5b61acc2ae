#define _GNU_SOURCE
#include "inner.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct symbol {
	const char *name;
	int need;
	size_t offset;
} symbols[] = {
#define NX_SYMBOL(need, result, name, params) {"nixl_capi_" #name, NX_##need, offsetof(struct nx, name)},
	NX_FUNCTIONS(NX_SYMBOL)
#undef NX_SYMBOL
};

int nx_symbol_count(void)
{
	return (int)(sizeof symbols / sizeof symbols[0]);
}

const char *nx_symbol_name(int i)
{
	return symbols[i].name;
}

int nx_symbol_need(int i)
{
	return symbols[i].need;
}

void nx_symbol_set(struct nx *l, int i, void *address)
{
	_Static_assert(sizeof(void (*)(void)) == sizeof address, "function pointers are as wide as object pointers");
	memcpy((char *)l + symbols[i].offset, &address, sizeof address);
}

int nx_symbol_present(const struct nx *l, int i)
{
	void *address;
	memcpy(&address, (const char *)l + symbols[i].offset, sizeof address);
	return address != NULL;
}

void nx_set_exact_status(struct nx *l, void *address)
{
	memcpy(&l->exact_status, &address, sizeof address);
}

int nx_version(const struct nx *l, int *major, int *minor, int *patch)
{
	*major = *minor = *patch = 0;
	return l->get_version != NULL && l->get_version(major, minor, patch) == NX_SUCCESS;
}

int nx_is_stub(const struct nx *l)
{
	return l->is_stub != NULL && l->is_stub();
}

// Codes of C API 0.1 below those of 1.5.1, as the C++ library numbers them.
static const int newer_native[] = {-1, -5, -6, -7, -8, -9, -10, -11};

void nx_plain(const struct nx *l, int *status, int *native)
{
	if (l->layout == NX_LAYOUT_0_1 && *status <= -7 && *status >= -14) {
		*native = newer_native[-7 - *status];
		*status = NX_ERR_BACKEND;
	}
}

int nx_fail(const struct nx *l, struct nx_err *e, int status, int native)
{
	nx_plain(l, &status, &native);
	if (e != NULL) {
		const char *text = l->last_error_message != NULL ? l->last_error_message() : NULL;
		e->status = status;
		e->native = native;
		e->text[0] = 0;
		if (text != NULL && status != NX_ERR_NO_MEMORY) {
			strncpy(e->text, text, sizeof e->text - 1);
			e->text[sizeof e->text - 1] = 0;
		}
	}
	return status;
}

int nx_check(const struct nx *l, struct nx_err *e, int status)
{
	if (status == NX_SUCCESS || status == NX_IN_PROG)
		return status;
	return nx_fail(l, e, status, 0);
}

void nx_put(struct nx_buf *b, const void *data, size_t len)
{
	if (b->failed)
		return;
	if (b->cap - b->len < len) {
		size_t cap = b->cap != 0 ? b->cap : 256;
		while (cap - b->len < len)
			cap *= 2;
		char *grown = realloc(b->data, cap);
		if (grown == NULL) {
			b->failed = 1;
			return;
		}
		b->data = grown;
		b->cap = cap;
	}
	if (len > 0)
		memcpy(b->data + b->len, data, len);
	b->len += len;
}

int nx_take(struct nx_buf *b, struct nx_bytes *out)
{
	if (b->failed) {
		free(b->data);
		return NX_ERR_NO_MEMORY;
	}
	out->data = b->data;
	out->len = b->len;
	return NX_SUCCESS;
}

void nx_free(struct nx_bytes *b)
{
	free(b->data);
	b->data = NULL;
	b->len = 0;
}

int nx_blob(const struct nx *l, void *data, size_t len, struct nx_bytes *out)
{
	struct nx_buf b = {0};
	if (data != NULL)
		nx_put(&b, data, len);
	if (l->mem_free != NULL)
		l->mem_free(data);
	else
		free(data);
	return nx_take(&b, out);
}

void nx_look(const void *word)
{
	(void)word;
}

int64_t nx_thread_cpu_nsec(void)
{
	struct timespec t;
	if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
		return 0;
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
