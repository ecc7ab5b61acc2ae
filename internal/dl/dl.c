#define _GNU_SOURCE
#include "dl.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

static char *reason(void)
{
	const char *text = dlerror();
	return strdup(text != NULL ? text : "the loader gives no reason");
}

void *lmc_dl_open(const char *name, int flags, char **error)
{
	int mode = RTLD_LOCAL | ((flags & LMC_DL_LAZY) ? RTLD_LAZY : RTLD_NOW);
	if (flags & LMC_DL_NOLOAD)
		mode |= RTLD_NOLOAD;
	void *handle = dlopen(name, mode);
	if (handle == NULL)
		*error = reason();
	return handle;
}

void *lmc_dl_sym(void *handle, const char *name, char **error)
{
	(void)dlerror();
	void *address = dlsym(handle, name);
	if (address == NULL)
		*error = reason();
	return address;
}

int lmc_dl_close(void *handle, char **error)
{
	if (dlclose(handle) == 0)
		return 0;
	*error = reason();
	return -1;
}

char *lmc_dl_path(void *handle)
{
	struct link_map *map = NULL;
	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == NULL || map->l_name == NULL)
		return NULL;
	return strdup(map->l_name);
}

char *lmc_dl_owner(const void *address)
{
	Dl_info info;
	if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
		return NULL;
	return strdup(info.dli_fname);
}

uintptr_t lmc_dl_call(void *function, const uintptr_t a[8])
{
	uintptr_t (*f)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
	_Static_assert(sizeof f == sizeof function, "function pointers are as wide as object pointers");
	memcpy(&f, &function, sizeof f);
	return f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
}

int lmc_setenv_default(const char *name, const char *value)
{
	if (getenv(name) != NULL)
		return 0;
	return setenv(name, value, 0) == 0;
}
