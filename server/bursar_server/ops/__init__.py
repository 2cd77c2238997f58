"""Operations: health, telemetry, `bursar-server check`, backups, checkpoints and verification."""
