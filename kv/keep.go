package kv

// KeepStaged sets Options.KeepImages; call it before Open.
func (s *Store) KeepStaged(images func() [][]byte) { s.opts.KeepImages = images }
