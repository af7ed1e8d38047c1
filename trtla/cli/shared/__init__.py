"""What several commands share: options, values, presets, the model that they open."""
