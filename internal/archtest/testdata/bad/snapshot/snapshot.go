package snapshot

import (
	"github.com/prometheus/client_golang/prometheus"
)

var registered prometheus.Registerer

func init() { registered = prometheus.DefaultRegisterer }
