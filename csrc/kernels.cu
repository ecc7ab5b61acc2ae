// Kernels of lmcache-go. Everything that can be done by a copy engine is done
// by one; what is here moves bytes inside a GPU or between two of them, never
// over the bus to host memory, which would halve the speed of an engine that
// computes meanwhile.
//
// All arguments are 8 bytes wide. No header is needed, so that nvcc and NVRTC
// both compile this file.

typedef unsigned long long u64;

struct alignas(16) word16 {
	u64 a, b;
};

// copy_block copies n bytes by the threads of one block: 16 at a time where
// both ends allow it, else 8, 4, 1. Four loads are under way per thread before
// the first store, since the other GPU is far.
template <typename T> static __device__ void copy_as(char *dst, const char *src, u64 n)
{
	const T *from = (const T *)src;
	T *to = (T *)dst;
	u64 count = n / sizeof(T), step = blockDim.x, i = threadIdx.x;
	for (; i + 3 * step < count; i += 4 * step) {
		T a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
		to[i] = a;
		to[i + step] = b;
		to[i + 2 * step] = c;
		to[i + 3 * step] = d;
	}
	for (; i < count; i += step)
		to[i] = from[i];
}

static __device__ void copy_block(char *dst, const char *src, u64 n)
{
	u64 all = (u64)dst | (u64)src | n;
	if (all % 16 == 0)
		copy_as<word16>(dst, src, n);
	else if (all % 8 == 0)
		copy_as<u64>(dst, src, n);
	else if (all % 4 == 0)
		copy_as<unsigned int>(dst, src, n);
	else
		copy_as<char>(dst, src, n);
}

// lmc_pull copies n pieces: bytes[i] from src[i] to dst[i]. The thread blocks
// of the grid share them; their number bounds how many multiprocessors are
// taken from whoever else computes. The tables lie in device memory.
extern "C" __global__ void __launch_bounds__(1024)
	lmc_pull(char *const *dst, const char *const *src, const u64 *bytes, u64 n)
{
	for (u64 i = blockIdx.x; i < n; i += gridDim.x)
		copy_block(dst[i], src[i], bytes[i]);
}

// lmc_transpose exchanges the two inner axes of blocks that lie side by side:
// [blocks][rows][columns][piece] becomes [blocks][columns][rows][piece], with
// pieces of some bytes. Head-major blocks become token-major with rows = heads
// and columns = tokens, and the other way round with the two exchanged. A warp
// copies a piece at a time, so that both ends are read and written in full
// lines from 32 bytes on.
extern "C" __global__ void __launch_bounds__(1024)
	lmc_transpose(char *dst, const char *src, u64 blocks, u64 rows, u64 columns, u64 piece)
{
	u64 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	u64 total = blocks * rows * columns;
	// Divisions of 32 bits are several times faster, and suffice up to here.
	unsigned int wide = (unsigned int)columns, each = (unsigned int)(rows * columns);
	for (u64 i = blockIdx.x * warps + warp; i < total; i += gridDim.x * warps) {
		u64 r, c, b;
		if (total >> 32 == 0) {
			unsigned int n = (unsigned int)i, in = n % each;
			b = n / each;
			r = in / wide;
			c = in % wide;
		} else {
			b = i / (rows * columns);
			r = i / columns % rows;
			c = i % columns;
		}
		const char *from = src + i * piece;
		char *to = dst + ((b * columns + c) * rows + r) * piece;
		u64 all = (u64)from | (u64)to | piece;
		if (all % 16 == 0) {
			for (u64 k = lane; k < piece / 16; k += 32)
				((word16 *)to)[k] = ((const word16 *)from)[k];
		} else if (all % 4 == 0) {
			for (u64 k = lane; k < piece / 4; k += 32)
				((unsigned int *)to)[k] = ((const unsigned int *)from)[k];
		} else {
			for (u64 k = lane; k < piece; k += 32)
				to[k] = from[k];
		}
	}
}
