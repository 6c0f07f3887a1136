"""What tests of Plait and of its plugins share; ships in the wheel."""
