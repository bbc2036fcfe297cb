package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what figures were measured on. What the system does not tell is
// empty or zero.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	Go   string `json:"go"`
	CPUs int    `json:"cpus"`
	// CPU is its model, Kernel the release of the system, Memory in bytes.
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
	Memory uint64 `json:"memory_bytes"`
}

// ThisMachine tells what this process runs on.
func ThisMachine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version(), CPUs: runtime.NumCPU()}
	m.CPU = fieldOf("/proc/cpuinfo", "model name")
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(kernel))
	}
	if kib, err := strconv.ParseUint(strings.TrimSuffix(fieldOf("/proc/meminfo", "MemTotal"), " kB"), 10, 54); err == nil {
		m.Memory = kib << 10
	}
	return m
}

// String is one line for people.
func (m Machine) String() string {
	text := fmt.Sprintf("%d CPUs", m.CPUs)
	if m.CPU != "" {
		text += " (" + m.CPU + ")"
	}
	if m.Memory > 0 {
		text += fmt.Sprintf(", %.0f GiB", float64(m.Memory)/(1<<30))
	}
	return strings.TrimSpace(text + ", " + strings.Join(strings.Fields(m.OS+" "+m.Arch+" "+m.Kernel), " ") + ", " + m.Go)
}

// fieldOf returns the value of the first line "name: value" of a file; "" if there
// is none.
func fieldOf(path, name string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
