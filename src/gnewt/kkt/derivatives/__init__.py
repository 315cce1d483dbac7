"""Local derivatives at a point: values, duals, Jacobians and Hessians of every family. Once per iterate."""
