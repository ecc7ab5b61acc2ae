package mpserver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// A storage that cannot be mapped is an error, and what was mapped before it
// is given back.
func TestOpenServerDrivenMapsAllOrNothing(t *testing.T) {
	dev := device.NewFake(device.FakeOptions{})
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	dev.AddMemory("/lmcache_kv_there", make([]byte, 64))
	kv := &kvlayout.Layout{Storages: []kvlayout.Storage{{Key: "/lmcache_kv_there", Bytes: 64}, {Key: "/lmcache_kv_none", Bytes: 64}}}
	d, err := openServerDriven(&registration{id: 1}, dev, "fake", kv)
	require.ErrorIs(t, err, device.ErrOpen)
	require.Nil(t, d)
	require.Zero(t, dev.Stats().Mappings)
}
