define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
entry:
  br label %head1
head1:
  %i4 = phi i64 [ %begin, %entry ], [ %v19, %body2 ]
  %v5 = icmp slt i64 %i4, %end
  br i1 %v5, label %body2, label %done3
body2:
  %v6 = mul nsw i64 %i4, 4
  %p7 = getelementptr i64, ptr %integers, i64 %v6
  %p8 = getelementptr i64, ptr %p7, i64 0
  %v9 = load i64, ptr %p8, align 8
  %p10 = getelementptr i64, ptr %p7, i64 1
  %v11 = load i64, ptr %p10, align 8
  %p12 = getelementptr i64, ptr %p7, i64 2
  %v13 = load i64, ptr %p12, align 8
  %p14 = getelementptr i64, ptr %p7, i64 3
  %v15 = load i64, ptr %p14, align 8
  %v16 = inttoptr i64 %v9 to ptr
  %v17 = inttoptr i64 %v13 to ptr
  %p18 = getelementptr i64, ptr %pointers, i64 %v11
  call void %v16(ptr %p18, ptr %v17, ptr %numbers, i64 0, i64 %v15, ptr %scratch)
  %v19 = add nsw i64 %i4, 1
  br label %head1
done3:
  ret void
}
