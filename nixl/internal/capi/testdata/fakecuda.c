// The part of the CUDA driver that the binding uses, with counters.
int fake_init, fake_retained, fake_pushed, fake_popped, fake_device;
void *fake_current;

int cuInit(unsigned flags)
{
	(void)flags;
	fake_init++;
	return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal + 100;
	return ordinal > 7 ? 101 : 0; // CUDA_ERROR_INVALID_DEVICE
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &fake_device;
	fake_device = device;
	fake_retained++;
	return 0;
}

int cuCtxGetCurrent(void **context)
{
	*context = fake_current;
	return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
	fake_pushed++;
	fake_current = context;
	return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
	fake_popped++;
	*context = fake_current;
	fake_current = 0;
	return 0;
}
