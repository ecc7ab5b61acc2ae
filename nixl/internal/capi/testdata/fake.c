// A library with NIXL's names and none of its abilities, for tests of what
// happens around loading. Every function returns 0, except:
//   -DVERSION=a,b,c  there is a version function that says so
//   -DSTUB           is_stub says true
// create_configured_agent keeps the configuration for the test to read, and
// with -DFAIL=n fails with n.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../table.h"

__attribute__((used)) static int fake_ok(void)
{
	return 0;
}

#define FAKE(need, result, name, params)                                                                               \
	__asm__(".globl nixl_capi_" #name "\n.weak nixl_capi_" #name "\n.type nixl_capi_" #name ", @function\n"        \
		".set nixl_capi_" #name ", fake_ok\n");
NX_FUNCTIONS(FAKE)

#ifdef VERSION
int nixl_capi_get_version(int *major, int *minor, int *patch)
{
	int v[] = {VERSION};
	*major = v[0], *minor = v[1], *patch = v[2];
	return 0;
}

const char *nixl_capi_last_error_message(void)
{
	return "the fake says no ";
}
#endif

#ifdef STUB
bool nixl_capi_is_stub(void)
{
	return true;
}
#endif

unsigned char fake_config[40];

int nixl_capi_create_configured_agent(const char *name, const void *config, void **agent)
{
	(void)name;
	memcpy(fake_config, config, sizeof fake_config);
	*agent = fake_config;
#ifdef FAIL
	return FAIL;
#else
	return 0;
#endif
}
