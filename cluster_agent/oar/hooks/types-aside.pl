# nodectl: written by `clusterctl oar install` (1 of 2), taken away by `clusterctl oar remove`: @NAMES@ as job types
# Rules that know no such types come later, so these are set aside here, and the second rule adds them again.
@OAR::nodectl_types = grep { /^(?:@KINDS@)(?:=|$)/ } @{$type_list};
@{$type_list} = grep { not /^(?:@KINDS@)(?:=|$)/ } @{$type_list};
foreach my $kind (qw(@WORDS@)) {
    my @said = grep { /^$kind(?:=|$)/ } @OAR::nodectl_types;
    die("[ADMISSION RULE] Error: a job has one type $kind=...: @said\n") if (@said > 1);
}
foreach my $type (@OAR::nodectl_types) {
    next if ($type =~ /^(?:@ADMITTED@)$/);
    die("[ADMISSION RULE] Error: $type is none of @NAMES@\n");
}
