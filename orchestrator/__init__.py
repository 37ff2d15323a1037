"""The core: owns the ports and the step loop; knows no model and no policy."""
