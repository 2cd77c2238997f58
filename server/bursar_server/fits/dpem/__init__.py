"""FitDPEM: mixtures of Gaussians and k-means by differentially private EM (Park et al. 2016, corrected)."""
