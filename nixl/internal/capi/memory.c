// Registration, queries and metadata.
#include "inner.h"

#include <string.h>

enum { VRAM = 1 };

int nx_reg_list(const struct nx *l, int mem, const struct nx_desc *d, size_t n, const char *metas,
		const size_t *meta_lens, void **list)
{
	int status = l->create_reg_dlist(mem, list);
	if (status != NX_SUCCESS)
		return status;
	for (size_t i = 0; i < n && status == NX_SUCCESS; i++) {
		size_t len = meta_lens != NULL ? meta_lens[i] : 0;
		status = l->reg_dlist_add_desc(*list, d[i].addr, d[i].len, d[i].dev, len > 0 ? metas : NULL, len);
		metas += len;
	}
	if (status != NX_SUCCESS)
		l->destroy_reg_dlist(*list);
	return status;
}

// listed is a call on a list of regions and optional arguments, both made and
// destroyed around it.
struct listed {
	void *list, *opt;
};

static int listed_begin(const struct nx *l, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
			const char *metas, const size_t *meta_lens, struct listed *x)
{
	int status = nx_reg_list(l, mem, d, n, metas, meta_lens, &x->list);
	if (status != NX_SUCCESS)
		return status;
	status = nx_opt(l, backend, &x->opt);
	if (status != NX_SUCCESS)
		l->destroy_reg_dlist(x->list);
	return status;
}

static void listed_end(const struct nx *l, struct listed *x)
{
	l->destroy_opt_args(x->opt);
	l->destroy_reg_dlist(x->list);
}

int nx_register(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
		const char *metas, const size_t *meta_lens, struct nx_err *e)
{
	struct listed x;
	int status = listed_begin(l, backend, mem, d, n, metas, meta_lens, &x);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	int entered = nx_cuda_enter(l, mem == VRAM && n > 0 ? (int)d[0].dev : -1);
	status = nx_check(l, e, l->register_mem(NX_P(agent), x.list, x.opt));
	nx_cuda_leave(l, entered);
	listed_end(l, &x);
	return status;
}

int nx_deregister(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
		  const char *metas, const size_t *meta_lens, struct nx_err *e)
{
	struct listed x;
	int status = listed_begin(l, backend, mem, d, n, metas, meta_lens, &x);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	int entered = nx_cuda_enter(l, mem == VRAM && n > 0 ? (int)d[0].dev : -1);
	status = nx_check(l, e, l->deregister_mem(NX_P(agent), x.list, x.opt));
	nx_cuda_leave(l, entered);
	listed_end(l, &x);
	return status;
}

// put_answer writes one answer of a query.
static int put_answer(const struct nx *l, void *answers, size_t i, struct nx_buf *b)
{
	bool has = false;
	void *params = NULL;
	uint32_t count = 0;
	int status = l->query_resp_list_has_value(answers, i, &has);
	if (status != NX_SUCCESS)
		return status;
	nx_put(b, has ? "\1" : "\0", 1);
	if (!has)
		return status;
	size_t at = b->len;
	nx_put(b, &count, sizeof count);
	status = l->query_resp_list_get_params(answers, i, &params);
	if (status != NX_SUCCESS)
		return status;
	status = nx_put_params(l, params, b, &count);
	if (!b->failed)
		memcpy(b->data + at, &count, sizeof count);
	l->destroy_params(params);
	return status;
}

int nx_query(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
	     const char *metas, const size_t *meta_lens, struct nx_bytes *out, struct nx_err *e)
{
	struct listed x;
	struct nx_buf b = {0};
	void *answers = NULL;
	size_t count = 0;
	int status = listed_begin(l, backend, mem, d, n, metas, meta_lens, &x);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = l->create_query_resp_list(&answers);
	if (status == NX_SUCCESS) {
		status = l->query_mem(NX_P(agent), x.list, answers, x.opt);
		if (status == NX_SUCCESS)
			status = l->query_resp_list_size(answers, &count);
		for (size_t i = 0; i < count && status == NX_SUCCESS; i++)
			status = put_answer(l, answers, i, &b);
		l->destroy_query_resp_list(answers);
	}
	listed_end(l, &x);
	if (nx_take(&b, out) != NX_SUCCESS)
		status = NX_ERR_NO_MEMORY;
	return nx_check(l, e, status);
}

int nx_local_md(const struct nx *l, uintptr_t agent, struct nx_bytes *blob, struct nx_err *e)
{
	void *data = NULL;
	size_t len = 0;
	int status = l->get_local_md(NX_P(agent), &data, &len);
	if (status == NX_SUCCESS)
		status = nx_blob(l, data, len, blob);
	return nx_check(l, e, status);
}

int nx_partial_md(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d, size_t n,
		  const char *metas, const size_t *meta_lens, struct nx_bytes *blob, struct nx_err *e)
{
	struct listed x;
	void *data = NULL;
	size_t len = 0;
	int status = listed_begin(l, backend, mem, d, n, metas, meta_lens, &x);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = l->get_local_partial_md(NX_P(agent), x.list, &data, &len, x.opt);
	if (status == NX_SUCCESS)
		status = nx_blob(l, data, len, blob);
	status = nx_check(l, e, status);
	listed_end(l, &x);
	return status;
}

int nx_load_md(const struct nx *l, uintptr_t agent, const void *blob, size_t len, struct nx_bytes *name,
	       struct nx_err *e)
{
	char *text = NULL;
	int status = l->load_remote_md(NX_P(agent), blob, len, &text);
	if (status == NX_SUCCESS)
		status = nx_blob(l, text, text != NULL ? strlen(text) : 0, name);
	return nx_check(l, e, status);
}

int nx_invalidate(const struct nx *l, uintptr_t agent, const char *remote, struct nx_err *e)
{
	return nx_check(l, e, l->invalidate_remote_md(NX_P(agent), remote));
}

int nx_check_md(const struct nx *l, uintptr_t agent, const char *remote, int mem, const struct nx_desc *d, size_t n,
		struct nx_err *e)
{
	void *list = NULL;
	int status = NX_SUCCESS;
	if (n > 0)
		status = nx_xfer_list(l, mem, d, n, &list);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_check(l, e, l->check_remote_md(NX_P(agent), remote, list));
	if (list != NULL)
		l->destroy_xfer_dlist(list);
	return status == NX_SUCCESS;
}

// routed makes optional arguments that send a call to ip and port.
static int routed(const struct nx *l, uintptr_t backend, const char *ip, uint16_t port, void **opt)
{
	int status = nx_opt(l, backend, opt);
	if (status != NX_SUCCESS || ip == NULL)
		return status;
	status = l->opt_args_set_ip_addr(*opt, ip);
	if (status == NX_SUCCESS)
		status = l->opt_args_set_port(*opt, port);
	if (status != NX_SUCCESS)
		l->destroy_opt_args(*opt);
	return status;
}

int nx_send_md(const struct nx *l, uintptr_t agent, const char *ip, uint16_t port, struct nx_err *e)
{
	void *opt = NULL;
	int status = routed(l, 0, ip, port, &opt);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_check(l, e, l->send_local_md(NX_P(agent), opt));
	l->destroy_opt_args(opt);
	return status;
}

int nx_send_partial_md(const struct nx *l, uintptr_t agent, uintptr_t backend, int mem, const struct nx_desc *d,
		       size_t n, const char *metas, const size_t *meta_lens, const char *ip, uint16_t port,
		       struct nx_err *e)
{
	void *opt = NULL, *list = NULL;
	int status = routed(l, backend, ip, port, &opt);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_reg_list(l, mem, d, n, metas, meta_lens, &list);
	if (status == NX_SUCCESS) {
		status = l->send_local_partial_md(NX_P(agent), list, opt);
		l->destroy_reg_dlist(list);
	}
	status = nx_check(l, e, status);
	l->destroy_opt_args(opt);
	return status;
}

int nx_fetch_md(const struct nx *l, uintptr_t agent, const char *remote, const char *ip, uint16_t port,
		struct nx_err *e)
{
	void *opt = NULL;
	int status = routed(l, 0, ip, port, &opt);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_check(l, e, l->fetch_remote_md(NX_P(agent), remote, opt));
	l->destroy_opt_args(opt);
	return status;
}

int nx_withdraw_md(const struct nx *l, uintptr_t agent, const char *ip, uint16_t port, struct nx_err *e)
{
	void *opt = NULL;
	int status = routed(l, 0, ip, port, &opt);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_check(l, e, l->invalidate_local_md(NX_P(agent), opt));
	l->destroy_opt_args(opt);
	return status;
}
