package torchpickle

// Limits of one call of [Parse]. Each is far above what a client needs (a
// request of 128 k tokens has 512 chunks of 4 dimensions) and low enough that
// the worst input costs a bounded multiple of its own size.
const (
	// maxTensors in one list. 65 536 chunks of 256 tokens are a prompt of 16
	// million tokens.
	maxTensors = 1 << 16
	// maxDims of one tensor; KV objects have 3 or 4.
	maxDims = 16
	// maxStack values on the machine's stack. A pickler holds back at most
	// one batch of 1000 list items.
	maxStack = 1 << 12
	// maxMarks open at a time; torch's tensors need 2.
	maxMarks = 16
	// maxLists and maxDicts alive in one stream; torch needs 1 and 2 (and, in
	// the outer stream, one list).
	maxLists = 4
	maxDicts = 8
	// maxName is the longest name of a global in bytes.
	maxName = 64

	// maxOps executed in all streams of one input, beside the limit that
	// follows from its size: an operation takes at least one byte, and only
	// a stream that is loaded again and again could execute more.
	maxOps = 1 << 24
	// maxRecords is the number of values kept (memo, tuples, lists, tensors,
	// dimensions), about 24 bytes each, beside the limit that follows from
	// the size: no honest list needs more than one for five bytes.
	maxRecords = 1 << 22
	// freeOps and freeRecords are what even the smallest input may use.
	freeOps     = 1 << 10
	freeRecords = 1 << 10

	// keptValues is the capacity up to which a machine goes back to the pool.
	keptValues = 1 << 16
)

// budget counts what one Parse may still spend.
type budget struct {
	ops, records, decoded int
}

func newBudget(inputBytes int) budget {
	return budget{
		ops:     min(inputBytes+freeOps, maxOps),
		records: min(inputBytes/4+freeRecords, maxRecords),
		decoded: inputBytes,
	}
}
