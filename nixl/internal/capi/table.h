// The functions of NIXL's C API that the binding uses, as one list. NIXL
// ships no header in its wheels, so the prototypes are ours: handles are
// opaque pointers, enums and status codes are int.
//
// Each line: need, result, name without the prefix "nixl_capi_", parameters.
// REQUIRED: the library is refused without it. OPTIONAL: a feature is off
// without it. SINCE_VERSION: required when the library has a version number
// at all (nixl_capi_get_version), which NIXL 1.5.1 does not.
#ifndef LMCACHE_GO_NIXL_TABLE_H
#define LMCACHE_GO_NIXL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NX_FUNCTIONS(X) \
	/* library */ \
	X(OPTIONAL, int, get_version, (int *major, int *minor, int *patch)) \
	X(SINCE_VERSION, const char *, last_error_message, (void)) \
	X(SINCE_VERSION, void, mem_free, (void *p)) \
	X(OPTIONAL, bool, is_stub, (void)) \
	/* agent */ \
	X(REQUIRED, int, create_configured_agent, (const char *name, const void *config, void **agent)) \
	X(REQUIRED, int, destroy_agent, (void *agent)) \
	X(REQUIRED, int, agent_make_connection, (void *agent, const char *remote, void *opt)) \
	/* metadata */ \
	X(REQUIRED, int, get_local_md, (void *agent, void **blob, size_t *len)) \
	X(REQUIRED, int, get_local_partial_md, (void *agent, void *regs, void **blob, size_t *len, void *opt)) \
	X(REQUIRED, int, load_remote_md, (void *agent, const void *blob, size_t len, char **name)) \
	X(REQUIRED, int, invalidate_remote_md, (void *agent, const char *remote)) \
	X(REQUIRED, int, check_remote_md, (void *agent, const char *remote, void *list)) \
	X(REQUIRED, int, send_local_md, (void *agent, void *opt)) \
	X(REQUIRED, int, send_local_partial_md, (void *agent, void *regs, void *opt)) \
	X(REQUIRED, int, fetch_remote_md, (void *agent, const char *remote, void *opt)) \
	X(REQUIRED, int, invalidate_local_md, (void *agent, void *opt)) \
	/* plugins, parameters */ \
	X(REQUIRED, int, get_available_plugins, (void *agent, void **list)) \
	X(REQUIRED, int, string_list_size, (void *list, size_t *n)) \
	X(REQUIRED, int, string_list_get, (void *list, size_t i, const char **text)) \
	X(REQUIRED, int, destroy_string_list, (void *list)) \
	X(REQUIRED, int, get_plugin_params, (void *agent, const char *plugin, void **mems, void **params)) \
	X(REQUIRED, int, get_backend_params, (void *agent, void *backend, void **mems, void **params)) \
	X(REQUIRED, int, mem_list_size, (void *mems, size_t *n)) \
	X(REQUIRED, int, mem_list_get, (void *mems, size_t i, int *mem)) \
	X(REQUIRED, int, destroy_mem_list, (void *mems)) \
	X(REQUIRED, int, create_params, (void **params)) \
	X(REQUIRED, int, params_add, (void *params, const char *key, const char *value)) \
	X(REQUIRED, int, params_is_empty, (void *params, bool *empty)) \
	X(REQUIRED, int, destroy_params, (void *params)) \
	X(REQUIRED, int, params_create_iterator, (void *params, void **iter)) \
	X(REQUIRED, int, params_iterator_next, (void *iter, const char **key, const char **value, bool *more)) \
	X(REQUIRED, int, params_destroy_iterator, (void *iter)) \
	X(REQUIRED, int, create_backend, (void *agent, const char *plugin, void *params, void **backend)) \
	X(REQUIRED, int, destroy_backend, (void *backend)) \
	/* optional arguments of other calls */ \
	X(REQUIRED, int, create_opt_args, (void **opt)) \
	X(REQUIRED, int, destroy_opt_args, (void *opt)) \
	X(REQUIRED, int, opt_args_add_backend, (void *opt, void *backend)) \
	X(REQUIRED, int, opt_args_set_notif_msg, (void *opt, const void *msg, size_t len)) \
	X(REQUIRED, int, opt_args_set_has_notif, (void *opt, bool has)) \
	X(REQUIRED, int, opt_args_set_skip_desc_merge, (void *opt, bool skip)) \
	X(REQUIRED, int, opt_args_set_ip_addr, (void *opt, const char *address)) \
	X(REQUIRED, int, opt_args_set_port, (void *opt, uint16_t port)) \
	X(OPTIONAL, int, opt_args_set_custom_param, (void *opt, const void *data, size_t len)) \
	/* memory */ \
	X(REQUIRED, int, register_mem, (void *agent, void *regs, void *opt)) \
	X(REQUIRED, int, deregister_mem, (void *agent, void *regs, void *opt)) \
	X(REQUIRED, int, query_mem, (void *agent, void *regs, void *answers, void *opt)) \
	X(REQUIRED, int, create_query_resp_list, (void **answers)) \
	X(REQUIRED, int, destroy_query_resp_list, (void *answers)) \
	X(REQUIRED, int, query_resp_list_size, (void *answers, size_t *n)) \
	X(REQUIRED, int, query_resp_list_has_value, (void *answers, size_t i, bool *has)) \
	X(REQUIRED, int, query_resp_list_get_params, (void *answers, size_t i, void **params)) \
	/* descriptor lists */ \
	X(REQUIRED, int, create_xfer_dlist, (int mem, void **list)) \
	X(REQUIRED, int, destroy_xfer_dlist, (void *list)) \
	X(REQUIRED, int, xfer_dlist_add_desc, (void *list, uintptr_t addr, size_t len, uint64_t dev)) \
	X(OPTIONAL, int, xfer_dlist_resize, (void *list, size_t n)) \
	X(OPTIONAL, int, xfer_dlist_clear, (void *list)) \
	X(REQUIRED, int, create_reg_dlist, (int mem, void **list)) \
	X(REQUIRED, int, destroy_reg_dlist, (void *list)) \
	X(REQUIRED, int, reg_dlist_add_desc, \
	  (void *list, uintptr_t addr, size_t len, uint64_t dev, const void *meta, size_t meta_len)) \
	X(OPTIONAL, int, create_remote_dlist, (int mem, void **list)) \
	X(OPTIONAL, int, destroy_remote_dlist, (void *list)) \
	X(OPTIONAL, int, remote_dlist_add_desc, (void *list, uintptr_t addr, size_t len, uint64_t dev, const char *remote)) \
	/* transfers */ \
	X(REQUIRED, int, create_xfer_req, \
	  (void *agent, int op, void *local, void *remote, const char *name, void **req, void *opt)) \
	X(REQUIRED, int, prep_xfer_dlist, (void *agent, const char *name, void *list, void **handle, void *opt)) \
	X(REQUIRED, int, make_xfer_req, \
	  (void *agent, int op, void *local, const int *li, size_t ln, void *remote, const int *ri, size_t rn, \
	   void **req, void *opt)) \
	X(REQUIRED, int, release_xfer_dlist_handle, (void *agent, void *handle)) \
	X(REQUIRED, int, estimate_xfer_cost, \
	  (void *agent, void *req, void *opt, int64_t *usec, int64_t *margin_usec, int *method)) \
	X(REQUIRED, int, post_xfer_req, (void *agent, void *req, void *opt)) \
	X(REQUIRED, int, get_xfer_status, (void *agent, void *req)) \
	X(REQUIRED, int, get_xfer_telemetry, (void *agent, void *req, void *telemetry)) \
	X(REQUIRED, int, release_xfer_req, (void *agent, void *req)) \
	X(REQUIRED, int, destroy_xfer_req, (void *req)) \
	/* notifications */ \
	X(REQUIRED, int, create_notif_map, (void **map)) \
	X(REQUIRED, int, destroy_notif_map, (void *map)) \
	X(REQUIRED, int, get_notifs, (void *agent, void *map, void *opt)) \
	X(REQUIRED, int, notif_map_size, (void *map, size_t *n)) \
	X(REQUIRED, int, notif_map_get_agent_at, (void *map, size_t i, const char **agent)) \
	X(REQUIRED, int, notif_map_get_notifs_size, (void *map, const char *agent, size_t *n)) \
	X(REQUIRED, int, notif_map_get_notif, (void *map, const char *agent, size_t i, const void **msg, size_t *len)) \
	X(REQUIRED, int, gen_notif, (void *agent, const char *remote, const void *msg, size_t len, void *opt)) \
	/* views for transfers that a GPU starts */ \
	X(OPTIONAL, int, prep_mem_view_local, (void *agent, void *list, void **view, void *opt)) \
	X(OPTIONAL, int, prep_mem_view_remote, (void *agent, void *list, void **view, void *opt)) \
	X(OPTIONAL, int, release_mem_view, (void *agent, void *view))

#endif
