// The loader of shared libraries as the Go side uses it. Everything that can
// fail answers with a text of the caller's to free, so that an error of the
// loader never has to be fetched by a second call, which could run on another
// thread (dlerror is per thread).
#ifndef LMCACHE_GO_DL_H
#define LMCACHE_GO_DL_H

#include <stdint.h>

enum {
	LMC_DL_LAZY = 1,   // resolve functions when first called, not when loading
	LMC_DL_NOLOAD = 2, // only find what the process already holds
};

// lmc_dl_open opens name and returns the handle, or NULL and a malloc'ed text.
void *lmc_dl_open(const char *name, int flags, char **error);

// lmc_dl_sym looks name up in handle and what handle depends on.
void *lmc_dl_sym(void *handle, const char *name, char **error);

// lmc_dl_close gives one reference of handle back.
int lmc_dl_close(void *handle, char **error);

// lmc_dl_path returns a malloc'ed copy of the path that the loader used for
// handle, or NULL.
char *lmc_dl_path(void *handle);

// lmc_dl_owner returns a malloc'ed copy of the path of the library that holds
// address, or NULL.
char *lmc_dl_owner(const void *address);

// lmc_dl_call calls a function of up to eight integer or pointer arguments.
// Surplus arguments are harmless in the calling conventions of the platforms
// that this package builds for (System V x86-64, AAPCS64).
uintptr_t lmc_dl_call(void *function, const uintptr_t args[8]);

// lmc_setenv sets a variable of the C environment unless it is set; it
// returns 1 when it did.
int lmc_setenv_default(const char *name, const char *value);

#endif
