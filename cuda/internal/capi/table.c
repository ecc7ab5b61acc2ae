#include "calls.h"

#include <string.h>

static const struct {
	const char *symbol;
	int required;
} functions[] = {
#define LMC_ROW(name, symbol, required, args) {symbol, required},
	LMC_CUDA_FUNCTIONS(LMC_ROW)
#undef LMC_ROW
};

enum { num_functions = sizeof functions / sizeof functions[0] };

// Function pointers of one size without padding: the table is an array too.
_Static_assert(sizeof(lmc_cuda) == num_functions * sizeof(void *), "table of pointers");

const char *lmc_cuda_symbol(int i, int *required)
{
	if (i < 0 || i >= num_functions)
		return NULL;
	*required = functions[i].required;
	return functions[i].symbol;
}

void lmc_cuda_set(lmc_cuda *t, int i, void *function)
{
	if (i >= 0 && i < num_functions)
		memcpy((char *)t + (size_t)i * sizeof(void *), &function, sizeof function);
}

const char *lmc_cuda_error_name(const lmc_cuda *t, CUresult r)
{
	const char *text = NULL;
	if (t->GetErrorName == NULL || t->GetErrorName(r, &text) != LMC_CUDA_SUCCESS)
		return NULL;
	return text;
}
