//go:build !amd64

package copyplan

const canStream = false

func streamCopy(dst, src []byte) { copy(dst, src) }

func storeFence() {}
