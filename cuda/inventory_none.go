//go:build !linux || !cgo

package cuda

// TakeInventory fails with [ErrNoNVML]: this build cannot load libraries.
func TakeInventory() (Inventory, error) { return Inventory{}, ErrNoNVML }
