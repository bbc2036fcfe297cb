// Tool may exit and panic, but its comment begins otherwise.
package main

import "os"

func main() {
	if len(os.Args) > 1 {
		panic("a command may")
	}
	os.Exit(0)
}
