// Package transport is clean.
package transport
