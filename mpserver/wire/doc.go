// Package wire reads and writes the frames of the MP protocol of lmcache 0.5.6.
//
// A message is a list of frames. After the identity that a ROUTER puts in
// front, a request is a uid, an operation and one frame for each argument; a
// reply is the uid and the operation as they came, and one frame with the value
// or none where the value is None:
//
//	request  [uid][op][argument 1]...[argument n]
//	reply    [uid][op][value]   or   [uid][op]
//
// Every frame but the uid holds one msgpack document. This package turns one
// such frame into a Go value and back; it knows no sockets, no sessions and no
// failure policy. [ParseOp] reads an operation frame, one Decode function reads
// each kind of argument and reply, one Append function writes it. Appended
// bytes equal those of the reference, which the golden tests prove.
//
// The types that matter: [Op], [Key] (the cache key that most requests carry),
// [EngineDrivenContext] and [DeviceWrapper] (how a worker registers), [Slot]
// (where in shared memory an object lies).
//
// # What a decoder accepts
//
// The same as msgspec, which the reference decodes with: maps for structs, in
// any key order, unknown keys ignored (but not in device wrappers), absent
// optional keys defaulted, the last of repeated keys winning, any width of an
// integer, valid UTF-8 in strings, and nothing behind the document. Integers
// must fit 64 signed bits. Sizes that a frame declares but cannot hold are
// refused before anything is allocated, and no decoder recurses on nested input.
//
// # Memory
//
// A []byte in a decoded value is a view into the frame unless its comment says
// otherwise; strings are copies. Append functions return the extended slice and
// keep nothing.
package wire
