// Package torchdtype knows the element types of PyTorch by name: how many
// bytes an element takes and under which storage class a tensor of it is
// pickled. For this project a dtype is a size and an identity; no arithmetic
// on elements happens anywhere.
//
// [Lookup] accepts what a client may put into dtype_str of a registration:
// any dtype attribute of the torch module, aliases included ("half"), without
// the "torch." prefix. The name in the result is the canonical one
// ("float16"), which is what replies carry.
package torchdtype
