package wire

import "fmt"

// fieldSet remembers which keys of a map were seen, by their index in the
// struct's list of names.
type fieldSet uint32

func (s *fieldSet) add(i int) { *s |= 1 << i }

// missing names the first required key that was not seen, if any. required has
// a bit for each required name.
func (s fieldSet) missing(what string, names []string, required fieldSet) error {
	absent := required &^ s
	if absent == 0 {
		return nil
	}
	for i, name := range names {
		if absent&(1<<i) != 0 {
			return fmt.Errorf("%s.%s: %w", what, name, ErrMissing)
		}
	}
	return nil
}

// object consumes a map whose keys are names, in any order. It calls read with
// the index of each known key, which must consume the value; values of unknown
// keys are skipped. required has a bit for each name that must be there. Errors
// say which key of what they concern.
//
// Hot decoders (see [DecodeKey]) write this loop out, to allocate nothing.
func (r *reader) object(what string, names []string, required fieldSet, read func(i int)) {
	n := r.fields()
	var seen fieldSet
	for range n {
		name := r.key()
		if i := indexOf(names, name); i >= 0 {
			seen.add(i)
			read(i)
		} else {
			r.skip()
		}
		if r.err != nil {
			r.err = inField(what, name, r.err)
			return
		}
	}
	if r.err != nil {
		r.err = fmt.Errorf("%s: %w", what, r.err)
	} else if err := seen.missing(what, names, required); err != nil {
		r.fail(err)
	}
}

func indexOf(names []string, name []byte) int {
	for i, s := range names {
		if s == string(name) {
			return i
		}
	}
	return -1
}

// list consumes an array of values that read consumes one by one. Errors say
// which element they concern.
func (r *reader) list(what string, read func(i int)) {
	n := r.array()
	for i := range n {
		read(i)
		if r.err != nil {
			r.err = fmt.Errorf("%s[%d]: %w", what, i, r.err)
			return
		}
	}
	if r.err != nil {
		r.err = fmt.Errorf("%s: %w", what, r.err)
	}
}
