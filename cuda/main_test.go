package cuda_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/internal/cudatest"
)

func TestMain(m *testing.M) {
	cudatest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}
