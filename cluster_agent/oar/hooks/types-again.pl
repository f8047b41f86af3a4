# nodectl: written by `clusterctl oar install` (2 of 2), taken away by `clusterctl oar remove`: @NAMES@ as job types
push(@{$type_list}, @OAR::nodectl_types);
