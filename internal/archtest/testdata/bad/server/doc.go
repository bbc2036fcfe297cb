// Package server lacks comments.
package server
