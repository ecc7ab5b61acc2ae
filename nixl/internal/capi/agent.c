// Agents, plugins, backends.
#include "inner.h"

#include <string.h>

// The library's agent configuration. Both layouts are 40 bytes; a library with
// a version number (C API 0.1) has a 16-bit port, which moved what follows.
struct config_1_5 {
	bool progress, listen;
	int32_t port, sync;
	uint32_t workers;
	uint64_t progress_delay, listen_delay;
	bool telemetry;
};
struct config_0_1 {
	bool progress, listen;
	uint16_t port;
	int32_t sync;
	uint32_t workers;
	uint64_t progress_delay, listen_delay;
	bool telemetry;
};
_Static_assert(sizeof(struct config_1_5) == 40, "size in 1.5.1");
_Static_assert(offsetof(struct config_1_5, port) == 4, "port in 1.5.1");
_Static_assert(offsetof(struct config_1_5, sync) == 8, "sync in 1.5.1");
_Static_assert(offsetof(struct config_1_5, progress_delay) == 16, "delays in 1.5.1");
_Static_assert(offsetof(struct config_1_5, telemetry) == 32, "telemetry in 1.5.1");
_Static_assert(sizeof(struct config_0_1) == 40, "size in 0.1");
_Static_assert(offsetof(struct config_0_1, port) == 2, "port in 0.1");
_Static_assert(offsetof(struct config_0_1, sync) == 4, "sync in 0.1");
_Static_assert(offsetof(struct config_0_1, progress_delay) == 16, "delays in 0.1");
_Static_assert(offsetof(struct config_0_1, telemetry) == 32, "telemetry in 0.1");

#define NX_FILL(config, c)                                                                                             \
	do {                                                                                                           \
		memset(&(config), 0, sizeof(config));                                                                  \
		(config).progress = (c)->progress != 0;                                                                \
		(config).listen = (c)->listen != 0;                                                                    \
		(config).port = (uint16_t)(c)->port;                                                                   \
		(config).sync = (c)->sync;                                                                             \
		(config).workers = 1;                                                                                  \
		(config).progress_delay = (c)->progress_delay_usec;                                                    \
		(config).listen_delay = (c)->listen_delay_usec;                                                        \
		(config).telemetry = (c)->telemetry != 0;                                                              \
	} while (0)

uintptr_t nx_agent_create(const struct nx *l, const char *name, const struct nx_agent_config *c, struct nx_err *e)
{
	void *agent = NULL;
	union {
		struct config_1_5 older;
		struct config_0_1 newer;
	} config;
	if (l->layout == NX_LAYOUT_0_1)
		NX_FILL(config.newer, c);
	else
		NX_FILL(config.older, c);
	if (nx_check(l, e, l->create_configured_agent(name, &config, &agent)) != NX_SUCCESS)
		return 0;
	return (uintptr_t)agent;
}

int nx_agent_destroy(const struct nx *l, uintptr_t agent, struct nx_err *e)
{
	return nx_check(l, e, l->destroy_agent(NX_P(agent)));
}

int nx_opt(const struct nx *l, uintptr_t backend, void **opt)
{
	int status = l->create_opt_args(opt);
	if (status == NX_SUCCESS && backend != 0) {
		status = l->opt_args_add_backend(*opt, NX_P(backend));
		if (status != NX_SUCCESS)
			l->destroy_opt_args(*opt);
	}
	return status;
}

int nx_connect(const struct nx *l, uintptr_t agent, const char *remote, uintptr_t backend, struct nx_err *e)
{
	void *opt = NULL;
	int status = nx_opt(l, backend, &opt);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_check(l, e, l->agent_make_connection(NX_P(agent), remote, opt));
	l->destroy_opt_args(opt);
	return status;
}

int nx_plugins(const struct nx *l, uintptr_t agent, struct nx_bytes *names, struct nx_err *e)
{
	void *list = NULL;
	size_t n = 0;
	struct nx_buf b = {0};
	int status = l->get_available_plugins(NX_P(agent), &list);
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = l->string_list_size(list, &n);
	for (size_t i = 0; i < n && status == NX_SUCCESS; i++) {
		const char *name = NULL;
		status = l->string_list_get(list, i, &name);
		if (status == NX_SUCCESS && name != NULL)
			nx_put(&b, name, strlen(name) + 1);
	}
	l->destroy_string_list(list);
	if (nx_take(&b, names) != NX_SUCCESS)
		status = NX_ERR_NO_MEMORY;
	return nx_check(l, e, status);
}

int nx_mem_bits(const struct nx *l, void *mems, uint32_t *bits)
{
	size_t n = 0;
	int mem = 0;
	int status = l->mem_list_size(mems, &n);
	*bits = 0;
	for (size_t i = 0; i < n && status == NX_SUCCESS; i++) {
		status = l->mem_list_get(mems, i, &mem);
		if (status == NX_SUCCESS && mem >= 0 && mem < 32)
			*bits |= 1u << mem;
	}
	return status;
}

int nx_put_params(const struct nx *l, void *params, struct nx_buf *b, uint32_t *count)
{
	bool empty = true, more = true;
	void *iter = NULL;
	*count = 0;
	// The iterator leaves its results alone on an empty map.
	int status = l->params_is_empty(params, &empty);
	if (status != NX_SUCCESS || empty)
		return status;
	status = l->params_create_iterator(params, &iter);
	while (status == NX_SUCCESS && more) {
		const char *key = NULL, *value = NULL;
		status = l->params_iterator_next(iter, &key, &value, &more);
		if (status == NX_SUCCESS && key != NULL && value != NULL) {
			nx_put(b, key, strlen(key) + 1);
			nx_put(b, value, strlen(value) + 1);
			++*count;
		}
	}
	if (iter != NULL)
		l->params_destroy_iterator(iter);
	return status;
}

// info turns what get_plugin_params and get_backend_params answer into bytes.
static int info(const struct nx *l, int status, void *list, void *params, uint32_t *mems, struct nx_bytes *out,
		struct nx_err *e)
{
	struct nx_buf b = {0};
	uint32_t count;
	if (status != NX_SUCCESS)
		return nx_fail(l, e, status, 0);
	status = nx_mem_bits(l, list, mems);
	if (status == NX_SUCCESS)
		status = nx_put_params(l, params, &b, &count);
	l->destroy_mem_list(list);
	l->destroy_params(params);
	if (nx_take(&b, out) != NX_SUCCESS)
		status = NX_ERR_NO_MEMORY;
	return nx_check(l, e, status);
}

int nx_plugin_info(const struct nx *l, uintptr_t agent, const char *plugin, uint32_t *mems, struct nx_bytes *params,
		   struct nx_err *e)
{
	void *list = NULL, *map = NULL;
	int status = l->get_plugin_params(NX_P(agent), plugin, &list, &map);
	return info(l, status, list, map, mems, params, e);
}

int nx_backend_info(const struct nx *l, uintptr_t agent, uintptr_t backend, uint32_t *mems, struct nx_bytes *params,
		    struct nx_err *e)
{
	void *list = NULL, *map = NULL;
	int status = l->get_backend_params(NX_P(agent), NX_P(backend), &list, &map);
	return info(l, status, list, map, mems, params, e);
}

uintptr_t nx_backend_create(const struct nx *l, uintptr_t agent, const char *plugin, const char *params,
			    size_t params_len, int cuda_device, struct nx_err *e)
{
	void *map = NULL, *backend = NULL;
	int status = l->create_params(&map);
	if (status != NX_SUCCESS) {
		nx_fail(l, e, status, 0);
		return 0;
	}
	for (const char *p = params; p < params + params_len && status == NX_SUCCESS;) {
		const char *value = p + strlen(p) + 1;
		status = l->params_add(map, p, value);
		p = value + strlen(value) + 1;
	}
	if (status == NX_SUCCESS) {
		int entered = nx_cuda_enter(l, cuda_device);
		status = l->create_backend(NX_P(agent), plugin, map, &backend);
		nx_cuda_leave(l, entered);
	}
	l->destroy_params(map);
	if (nx_check(l, e, status) != NX_SUCCESS)
		return 0;
	return (uintptr_t)backend;
}

void nx_backend_destroy(const struct nx *l, uintptr_t backend)
{
	l->destroy_backend(NX_P(backend));
}
