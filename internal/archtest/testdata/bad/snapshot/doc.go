// Package snapshot exits, sleeps and initialises.
package snapshot
