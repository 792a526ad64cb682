"""Decoders for waltap: pgoutput, yboutput, wal2json and decoderbufs."""
