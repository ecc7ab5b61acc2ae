package demo

import "context"

// scenario is a part that dies.
type scenario struct {
	title string
	lease string // kv_lease_duration of the engines; "" leaves the default
	run   func(ctx context.Context, v *verifier)
}

var scenarios = map[string]scenario{}
