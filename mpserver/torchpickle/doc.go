// Package torchpickle reads and writes the one kind of Python pickle that the
// MP protocol carries: a list of CPU tensors, as pickle.dumps makes it of a
// list[torch.Tensor] (COMMIT_STORE in pickle mode) and as pickle.loads
// accepts it (the reply to PREPARE_RETRIEVE).
//
// A pickle is a program. [Parse] interprets it on a machine that has no
// operation beyond building data: the only names it knows are those that
// torch itself writes for a tensor, each mapped to a function of this package
// that checks its arguments. Anything else is an error. The limits in
// limits.go hold for every input: no memory is reserved on the word of a
// declared length, memory and work are bounded by the size of the input, and
// nothing recurses.
//
// [Tensor] is a view into the input: its bytes are not copied until
// [Tensor.CopyTo]. [Encoder] holds everything of a reply that does not depend
// on the bytes, so that writing costs one copy of each chunk.
//
//	tensors, err := torchpickle.Parse(data)
//	for i := range tensors {
//		err = tensors[i].CopyTo(slot[i])
//	}
//
// Parse may be called from many goroutines at once, and so may the methods of
// an Encoder. The formats are those of lmcache 0.5.6 with torch 2.x: pickle
// protocols 2 to 5 outside, torch.save's legacy stream inside.
package torchpickle
